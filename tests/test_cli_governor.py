"""`dicast governor` on a real store, with nobody who works."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest
import redis

from dicast.app.application import create_app
from dicast.workers.admission.governor import Governor
from dicast.workers.admission.leases import LeaseStore, Returned, Want
from dicast.workers.nodes.registry import Node
from dicast.workers.policy.calls import CallOutcome
from dicast.workers.policy.rules import RulesStatus
from dicast.workers.store.connection import connect_async
from tests.command import Dicast, refused


def wishes_of(environ: dict[str, str]) -> dict[str, Any]:
    with redis.Redis.from_url(environ["REDIS_URL"], decode_responses=True) as client:
        return {pool: json.loads(override) for pool, override in client.hgetall("{dicast}:overrides").items()}


def traffic(environ: dict[str, str], pool: str = "sim", *, decided: bool = False) -> None:
    """One call refused by the provider, one open, one that waits."""

    async def call() -> None:
        app = create_app(environ)
        async with connect_async(app.store_url) as client:
            await client.hset(app.keys.job_limits, "j", 1)
            await client.hset(app.keys.epoch, "number", 1)  # a store that is in use already
            leases = LeaseStore(client, app.keys)
            if decided:
                await Governor(client, app.keys, app.configured_overrides).tick(pool)
            lease = "l" if pool == "sim" else f"{pool}."
            wants = [Want(f"{lease}{n}~0.0.{n}", "j", "news", "m") for n in range(3)]
            await leases.admit(pool=pool, node="n", ttl_ms=60_000, give_back=[], wants=wants[:1])
            back = [Returned(f"{lease}0~0.0.0", CallOutcome(429))]
            await leases.admit(pool=pool, node="n", ttl_ms=60_000, give_back=back, wants=wants[1:])
            await leases.admit(pool=pool, node="n", ttl_ms=60_000, give_back=[], wants=wants[2:])

    asyncio.run(call())


def test_pools_without_live_state_are_named(at_once: Dicast) -> None:
    assert at_once("governor", "show").stdout.split() == ["sim", "not", "used", "yet"]
    shown = json.loads(at_once("governor", "show", "--json").stdout)
    nothing = {"ready": 0, "busy": 0, "offline": 0, "idle": 0}
    means = dict.fromkeys(("mean_load", "mean_success_rate", "mean_latency_s"))
    assert shown.pop("summary") == {**nothing, **means}
    assert shown == {"slo": None, "pools": [{"pool": "sim", "live": False, "configured": {}}], "nodes": []}


def test_wishes_are_set_shown_and_taken_back(at_once: Dicast, environ: dict[str, str]) -> None:
    given = "--limit 7 --ceiling 9 --fixed --floor 2 --rpm 600 --tpm 90000 --pacing 0.5 --fair strict --weight a=3"
    run = at_once("governor", "set", "--pool", "sim", *given.split())
    assert (run.returncode, run.stdout) == (0, "")
    assert "Pool sim: limit 7 of at most 9. Overrides in force: limit 7, " in " ".join(run.stderr.split())
    want = {"limit": 7, "ceiling": 9, "adaptive": False, "floor": 2, "rpm": 600, "tpm": 90000, "pacing_s": 0.5,
            "fair": "strict", "weights": {"a": 3.0}}  # fmt: skip
    assert wishes_of(environ) == {"sim": want}
    assert at_once("governor", "set", "--pool", "", "--weight", "b=0.5").returncode == 0
    assert wishes_of(environ)["sim"]["weights"] == {"a": 3.0, "b": 0.5}
    at_once("governor", "set", "--pool", "sim", "--project-max", "*=0.5", "--project-max", "a=3")
    at_once("governor", "set", "--pool", "sim", "--project-max", "a=4")
    assert wishes_of(environ)["sim"].pop("project_max") == {"*": 0.5, "a": 4.0}
    at_once("governor", "unset", "--pool", "sim", "project-max")
    at_once("governor", "set", "--pool", "sim", "--latency-target", "2.5")
    assert wishes_of(environ)["sim"].pop("latency_target_s") == 2.5
    at_once("governor", "unset", "--pool", "sim", "latency-target")
    idle = at_once("governor", "show").stdout
    assert " ".join(idle.split()) == "sim idle; limit 7 of at most 9, 0 granted; 9 overrides set live"
    shown = " ".join(at_once("governor", "show", "--pool", "").stdout.split())
    assert "limit 7 (set live)" in shown and "adaptive false (set live)" in shown and "a=3 b=0.5" in shown
    assert at_once("governor", "unset", "--pool", "sim", "limit", "ceiling", "pacing").returncode == 0
    assert wishes_of(environ)["sim"].keys() == {"adaptive", "floor", "rpm", "tpm", "fair", "weights"}
    assert at_once("governor", "unset", "--pool", "sim", "--all").returncode == 0
    assert wishes_of(environ) == {}


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        ("set --pool sim --limit 0", "limit must be a whole number >= 1, got 0"),
        ("set --pool sim --limit 9 --ceiling 5", "limit must be <= ceiling (5), got 9"),
        ("set --pool sim --profile best", "profile must be one of default, classic, rules, fixed, got 'best'"),
        ("set --pool sim --settle 5", "settle_s is for profile 'classic'"),
        ("set --pool sim --break 0", "break_s must be a number >= 0.1, got 0.0"),
        ("set --pool sim --latency-target 0", "latency_target_s must be a number >= 0.01 and <= 3600, got 0.0"),
        ("set --pool sim --cpu-high 90", "cpu_high is for profile 'rules', not for 'default'"),
        ("set --pool sim --weight a", "weight must be PROJECT=NUMBER, got 'a'"),
        ("set --pool sim --weight a=-1", "weights must be numbers above 0 by project, got {'a': -1.0}"),
        ("set --pool sim --project-max a", "project-max must be PROJECT=NUMBER, got 'a'"),
        ("set --pool sim --project-max a=1.5", "project_max must be shares below 1, or whole numbers of slots"),
        ("set --pool sim --window 5", "window_s is for profile 'rules', not for 'default'"),
        (
            "set --pool sim --slo-target 0.9",
            "slo_burn_rate must be <= 10, the rate at which every call fails with slo_target 0.9, got 14.4",
        ),
        ("set --pool sim --slo-target 1", "slo_target must be a number >= 0 and <= 0.99999, got 1.0"),
        ("set --pool sim", "nothing to set"),
        ("set --pool sin --limit 3", "there is no pool 'sin'; did you mean 'sim'?"),
        ("unset --pool sim limt", "there is no override 'limt'; did you mean 'limit'?"),
        ("unset --pool sim zzz", "there is no override 'zzz'; there are limit, "),
        ("unset --pool sim", "name overrides, or say --all"),
        ("slo 0", "slo must be a whole number >= 1, or none, got 0"),
        ("slo many", "slo must be a whole number >= 1, or none, got 'many'"),
    ],
)
def test_mistakes_name_field_bound_and_value(
    at_once: Dicast,
    environ: dict[str, str],
    arguments: str,
    complaint: str,
) -> None:
    assert complaint in " ".join(refused(at_once("governor", *arguments.split())).split())
    assert wishes_of(environ) == {}


def test_the_slo_cap_binds_and_is_lifted(at_once: Dicast) -> None:
    at_once("governor", "set", "--pool", "sim", "--limit", "7")
    assert at_once("governor", "slo", "3").returncode == 0
    shown = json.loads(at_once("governor", "show", "--json").stdout)
    assert (shown["slo"], shown["pools"][0]["limit"]) == (3, 3)
    assert "no pool's limit is above 3" in at_once("governor", "show").stdout
    at_once("governor", "slo", "none")
    assert json.loads(at_once("governor", "show", "--json").stdout)["pools"][0]["limit"] == 7


def test_watching_goes_on_until_it_is_interrupted(environ: dict[str, str], tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "dicast.app.cli.main", "governor", "show", "--watch", "--json"],
        cwd=tmp_path, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        looks = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0
        assert process.stderr.read() == ""
    assert [look["pools"][0]["pool"] for look in looks] == ["sim", "sim"]


def test_each_workers_width_is_shown(at_once: Dicast, environ: dict[str, str]) -> None:
    app = create_app(environ)
    status = RulesStatus(9, 4, 0.25, 390.0, "CPU 390 %", 12, 210.0)
    app.registry.announce(Node.for_this_process("w@test", limit=5, slots=9), status)
    shown = " ".join(at_once("governor", "show").stdout.split())
    load = "CPU 390 % of one core, load 210 % over 5 min, 25.0 % of 12 failed"
    assert f"w@test 4 of 9 calls wide: CPU 390 %; 4 free; {load}" in shown
    [node] = json.loads(at_once("governor", "show", "--json").stdout)["nodes"]
    assert (node["node"], node["current"], node["reason"]) == ("w@test", 4, "CPU 390 %")
    app.close()


def test_what_happened_in_a_pool_is_shown(at_once: Dicast, environ: dict[str, str]) -> None:
    at_once("governor", "set", "--pool", "sim", "--limit", "6")
    at_once("governor", "set", "--pool", "sim", "--limit", "4", "--fixed")
    traffic(environ)
    [pool] = json.loads(at_once("governor", "show", "--json").stdout)["pools"]
    assert (pool["live"], pool["open"], pool["granted"], pool["rate_limited"]) == (True, 1, 2, 1)
    assert (pool["limit"], pool["ceiling"], pool["floor"], pool["effective_limit"]) == (4, 8, 1, 4)
    assert pool["waiting"] == ["news"] and pool["refused"] and pool["statuses"] == {"429": 1}
    assert pool["breaker"] == "closed" and pool["error_rate"] == 1.0
    assert pool["changes"][0]["reason"] == "set by the operator"
    assert pool["zombies"] == 1 and any("cannot be heard" in finding for finding in pool["findings"])
    shown = at_once("governor", "show").stdout
    assert "1 project waits: news" in shown and "429: 1" in shown and "set by the operator" in shown
    assert "! 1 leases belong to nodes that cannot be heard" in shown


def test_governor_alone_shows(at_once: Dicast) -> None:
    assert at_once("governor").stdout == at_once("governor", "show").stdout
    assert json.loads(at_once("governor", "--json").stdout)["pools"]
    assert "give the option to the command: dicast governor slo" in " ".join(
        refused(at_once("governor", "--json", "slo", "3")).split()
    )


def test_the_only_pool_need_not_be_named(at_once: Dicast, environ: dict[str, str], tmp_path: Path) -> None:
    assert at_once("governor", "set", "--limit", "7").returncode == 0
    assert wishes_of(environ) == {"sim": {"limit": 7}}
    assert at_once("governor", "unset", "limit").returncode == 0
    with (tmp_path / "pools.toml").open("a") as file:
        file.write('[pools.other]\nprovider = "local"\n')
    (tmp_path / "pools.toml").write_text('default = "sim"\n' + (tmp_path / "pools.toml").read_text())
    for command in ("set --limit 7", "unset limit"):
        said = refused(at_once("governor", *command.split()))
        assert said == "dicast: which pool? --pool names one of sim, other ('' is sim)\n"
    assert wishes_of(environ) == {}


def test_leases_are_listed_with_who_holds_them(at_once: Dicast, environ: dict[str, str]) -> None:
    at_once("governor", "set", "--limit", "4", "--fixed")
    traffic(environ)
    [pool] = json.loads(at_once("governor", "show", "--json").stdout)["pools"]
    [lease] = pool["leases"]
    assert (lease["lease"], lease["project"], lease["job"], lease["node"]) == ("l1~0.0.1", "news", "j", "n")
    assert not lease["probe"]
    assert 0 <= lease["age_s"] < 60 and 0 < lease["left_s"] < 61
    shown = " ".join(at_once("governor", "show").stdout.split())
    assert re.search(r"leases news, unit 0\.0\.1 of job j on n, model m, \d+ s old, ends in ", shown), shown
    assert (lease["model"], lease["cut"]) == ("m", False)


def test_calls_that_were_cut_are_told_beside_the_open_ones(at_once: Dicast, environ: dict[str, str]) -> None:
    """Whoever wonders why a pool is full finds the calls that nobody waits for any more."""
    at_once("governor", "set", "--limit", "4", "--fixed")
    traffic(environ)

    async def cut() -> None:
        app = create_app(environ)
        async with connect_async(app.store_url) as client:
            back = [Returned("l1~0.0.1", None, 300.0)]
            await LeaseStore(client, app.keys).admit(pool="sim", node="n", ttl_ms=60_000, give_back=back, wants=[])

    asyncio.run(cut())
    [pool] = json.loads(at_once("governor", "show", "--json").stdout)["pools"]
    assert (pool["open"], pool["cut"], pool["zombies"]) == (1, 1, 0)
    assert 240 < pool["cut_for_s"] < 301
    shown = " ".join(at_once("governor", "show").stdout.split())
    assert re.search(r"; cut: 1, which count for up to \d min more", shown), shown
    assert ", was cut" in shown


def test_the_limit_that_binds_is_named(at_once: Dicast, environ: dict[str, str]) -> None:
    """A job's frozen limit of 1 cuts the 20 that the operator overrides."""
    at_once("governor", "set", "--limit", "20")
    traffic(environ, decided=True)
    shown = " ".join(at_once("governor", "show").stdout.split())
    assert "20 is set, and MAX_CONCURRENT_LLM_CALLS of the running jobs (1) binds" in shown
    [pool] = json.loads(at_once("governor", "show", "--json").stdout)["pools"]
    assert pool["bound"] == "20 is set, and MAX_CONCURRENT_LLM_CALLS of the running jobs (1) binds"


def test_watching_fits_a_terminal_of_80_by_24(environ: dict[str, str], tmp_path: Path) -> None:
    """Six busy pools with all that can be told of them, and six idle ones."""
    names = [f"pool-{n}" for n in range(12)]
    tables = "".join(f'[pools.{name}]\nprovider = "simulated"\nbase_url = "http://127.0.0.1:9/v1"\n' for name in names)
    (tmp_path / "pools.toml").write_text(f'default = "{names[0]}"\n{tables}')
    for name in names[:6]:
        traffic(environ, name, decided=True)
    terminal, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with subprocess.Popen(
        [sys.executable, "-m", "dicast.app.cli.main", "governor", "show", "--watch"],
        cwd=tmp_path, env={**environ, "TERM": "xterm", "NO_COLOR": "1"}, stdin=theirs, stdout=theirs, stderr=theirs,
    ) as process:  # fmt: skip
        os.close(theirs)
        seen = b""
        while b"than this window is high" not in seen and select.select([terminal], [], [], 30)[0]:
            seen += os.read(terminal, 65536)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0
    os.close(terminal)
    screen = seen.decode().partition("\x1b[H")[2].partition("than this window is high")[0]
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen).splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("pool-0")
