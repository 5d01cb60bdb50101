"""`dicast governor` on a real store, with nobody who works."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis

from app.celery import create_app
from tests.command import Dicast, refused
from workers.nodes import Node
from workers.policy.admission import Outcome
from workers.policy.rules import RulesStatus
from workers.store.connection import connect_async
from workers.store.leases import LeaseStore, Returned, Want


def wishes_of(environ: dict[str, str]) -> dict[str, Any]:
    with redis.Redis.from_url(environ["REDIS_URL"], decode_responses=True) as client:
        return {pool: json.loads(wish) for pool, wish in client.hgetall("{dicast}:wishes").items()}


def traffic(environ: dict[str, str]) -> None:
    """One call refused by the provider, one open, one that waits."""

    async def call() -> None:
        app = create_app(environ)
        async with connect_async(app.store_url) as client:
            await client.hset(app.keys.job_limits, "j", 1)
            await client.hset(app.keys.epoch, "number", 1)  # a store that is in use already
            leases = LeaseStore(client, app.keys)
            wants = [Want(f"l{n}", "j", "news", "m") for n in range(3)]
            await leases.admit(pool="sim", node="n", ttl_ms=60_000, give_back=[], wanted=wants[:1])
            back = [Returned("l0", Outcome(429))]
            await leases.admit(pool="sim", node="n", ttl_ms=60_000, give_back=back, wanted=wants[1:])
            await leases.admit(pool="sim", node="n", ttl_ms=60_000, give_back=[], wanted=wants[2:])

    asyncio.run(call())


def test_pools_without_live_state_are_named(at_once: Dicast) -> None:
    assert "Without live state, for nobody has used them yet: sim" in at_once("governor", "show").stdout
    shown = json.loads(at_once("governor", "show", "--json").stdout)
    assert shown == {"slo": None, "pools": [{"pool": "sim", "live": False, "configured": {}}], "nodes": []}


def test_wishes_are_set_shown_and_taken_back(at_once: Dicast, environ: dict[str, str]) -> None:
    given = "--limit 7 --ceiling 9 --fixed --floor 2 --rpm 600 --tpm 90000 --pacing 0.5 --fair strict --weight a=3"
    run = at_once("governor", "set", "--pool", "sim", *given.split())
    assert (run.returncode, run.stdout) == (0, "")
    assert "Pool sim: limit 7 of at most 9. Wishes in force: limit 7, " in " ".join(run.stderr.split())
    want = {"limit": 7, "ceiling": 9, "adaptive": False, "floor": 2, "rpm": 600, "tpm": 90000, "pacing_s": 0.5,
            "fair": "strict", "weights": {"a": 3.0}}  # fmt: skip
    assert wishes_of(environ) == {"sim": want}
    assert at_once("governor", "set", "--pool", "", "--weight", "b=0.5").returncode == 0
    assert wishes_of(environ)["sim"]["weights"] == {"a": 3.0, "b": 0.5}
    shown = at_once("governor", "show").stdout
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
        ("set --pool sim --cpu-high 90", "cpu_high is for profile 'rules', not for 'default'"),
        ("set --pool sim --weight a", "weight must be PROJECT=NUMBER, got 'a'"),
        ("set --pool sim --weight a=-1", "weights must be numbers above 0 by project, got {'a': -1.0}"),
        ("set --pool sim", "nothing to set"),
        ("set --pool sin --limit 3", "there is no pool 'sin'; did you mean 'sim'?"),
        ("unset --pool sim limt", "there is no wish 'limt'; there are limit, "),
        ("unset --pool sim", "name wishes, or say --all"),
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
        [sys.executable, "-m", "app.cli", "governor", "show", "--watch", "--json"],
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
    app.registry.announce(Node.here("w@test", limit=5, slots=9), RulesStatus(9, 4, 0.25, 390.0, "CPU 390 %", 12))
    shown = at_once("governor", "show").stdout
    assert "w@test  4 of 9 calls wide: CPU 390 %; CPU 390 % of one core, 25.0% of 12 failed" in " ".join(
        shown.split("\n")
    )
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
