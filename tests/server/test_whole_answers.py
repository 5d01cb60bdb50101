"""Answers as a whole, where a field that is left out or wrong would not be missed by who asks for another."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx2
import pytest

from dicast.app.access.scopes import Scope
from dicast.app.application import Dicast
from dicast.app.reports.files import read_report
from dicast.app.server import interface
from dicast.app.server.routes import results
from dicast.workers.nodes.registry import Node
from dicast.workers.policy.rules import RulesStatus
from tests.page.world import finished as judged
from tests.server.serving import JOB, client, installation
from tests.server.test_results import START, finished


def test_a_job_that_only_its_files_know_is_shown_whole(http: httpx2.Client, dicast: Dicast) -> None:
    finished(dicast, "old", 5, failed=2, in_store=False)
    started_ms = round(1000 * START.timestamp())
    shown = {name: value for name, value in http.get("/jobs/old").json().items() if value not in (None, {}, [], "")}
    assert shown.pop("counters") == {
        "scored": 3, "failed": 2, "spared": 0, "calls": 0, "retries": 0, "requeues": 0, "timeouts": 0,
        "calls_without_answer": 0,
    }  # fmt: skip
    assert shown == {
        "id": "old", "project": "p", "state": "completed", "units": 5, "done": 5, "started_ms": started_ms,
        "finished_ms": started_ms, "health": "partial", "badge": "completed, 2 failed",
    }  # fmt: skip


def test_the_installation_at_a_glance(http: httpx2.Client, dicast: Dicast) -> None:
    node = Node.for_this_process("w@h", limit=5, slots=7, version="0", pools=("sim",))
    dicast.registry.announce(node, RulesStatus(5, 5, 0.0, 0.0, "start", 0))
    dicast.submit(JOB)
    shown = http.get("/status").json()
    assert shown.pop("version")
    pools = {pool["pool"]: pool for pool in shown.pop("pools")}
    assert pools.keys() <= {"sim", "other"}
    assert shown == {
        "installation": "dicast", "workers": 1, "slots": 7, "open_calls": 0, "unfinished_jobs": 1, "findings": [],
    }  # fmt: skip
    dicast.registry.deregister(node)
    assert http.get("/status").json()["findings"] == ["no worker is alive, and jobs wait"]


def test_a_session_tells_what_its_token_may_do(address: str, dicast: Dicast) -> None:
    token = dicast.tokens.issue("ada", [Scope.JOB_SUBMIT, Scope.JOB_READ], ttl_s=600, pools=["sim", "other"])
    with client(address, token) as http:
        shown = http.get("/session").json()
    assert (shown["subject"], shown["scopes"], shown["pools"]) == ("ada", ["job:read", "job:submit"], ["other", "sim"])
    assert shown["expires_at"] - shown["now"] == pytest.approx(600, abs=10)
    assert shown["require_auth"] is True


@pytest.mark.parametrize("sort", ["overall", "disagreement"])
def test_items_come_in_the_order_that_was_asked_for(http: httpx2.Client, dicast: Dicast, sort: str) -> None:
    judged(dicast, "r", 8)
    up = http.get("/jobs/r/items", params={"sort": sort}).json()["items"]
    down = http.get("/jobs/r/items", params={"sort": sort, "descending": True}).json()["items"]
    values = [item[sort] for item in up]
    assert len(set(values)) > 1 and values == sorted(values)
    assert [item[sort] for item in down] == sorted(values, reverse=True)


def test_the_errors_of_an_item_are_looked_for_within_bounds(
    http: httpx2.Client, dicast: Dicast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a file of any size, and there may be thousands of one item."""
    report = finished(dicast, "r", 6, failed=4)
    last = {"id": "i3"}
    assert len(http.get("/jobs/r/item", params=last).json()["errors"]) == 1
    size = len(Path(report.files.errors_jsonl).read_bytes())
    for most, found in ((size, 1), (size - 1, 0)):
        monkeypatch.setattr(results, "ERRORS_BYTES", most)
        assert len(http.get("/jobs/r/item", params=last).json()["errors"]) == found
    monkeypatch.setattr(results, "ERRORS_BYTES", size)
    monkeypatch.setattr(results, "ERRORS_MAX", 0)
    assert http.get("/jobs/r/item", params=last).json()["errors"] == []


def test_a_rater_sees_how_far_the_judges_are_and_the_farthest_first(dicast: Dicast, address: str) -> None:
    judged(dicast, "r", 8)
    with client(address, dicast.tokens.issue("o", [Scope.JOB_SUBMIT], ttl_s=60)) as owner:
        owner.post("/jobs/r/rating", json={"size": 5, "seed": 3})
    with client(address, dicast.tokens.issue("r", [Scope.RATING_WRITE], ttl_s=60)) as http:
        for n, item in enumerate(http.get("/jobs/r/rating?rater=ada").json()["items"]):
            for dimension, score in (("clear", 1 + n % 5), ("fair", 3), ("sound", 10 * n)):
                given = {"rater": "ada", "item_id": item, "dimension": dimension, "score": score}
                assert http.post("/jobs/r/rating/scores", json=given).status_code == 200
        found = http.post("/jobs/r/rating/finish", json={"rater": "ada"}, timeout=60).json()
    report = read_report(dicast.settings.results_dir, "r")
    size = {of.id: of.scale_max - of.scale_min for of in report.dimensions}
    assert {of["dimension"] for of in found["dimensions"]} == set(size)
    for of in found["compared"]:
        middle = sum(of["judges"].values()) / len(of["judges"])
        assert of["apart"] == pytest.approx(abs(of["score"] - middle) / size[of["dimension"]])
    apart = [of["apart"] for of in found["compared"]]
    assert apart == sorted(apart, reverse=True) and len(set(apart)) > 1


async def test_a_connection_that_ends_leaves_no_timer_behind(tmp_path, redis_url) -> None:
    """Each would keep its connection in memory for another 15 s."""
    from uvicorn.server import ServerState

    from dicast.app.server.interface import configured

    dicast = installation(tmp_path, redis_url)
    config = configured(dicast, "127.0.0.1")
    config.load()
    loop = asyncio.get_running_loop()
    made = await loop.create_server(
        lambda: interface.TimeoutProtocol(config=config, server_state=state, app_state={}, _loop=loop), "127.0.0.1", 0
    ) if (state := ServerState()) else None  # fmt: skip
    protocols = []
    lost = asyncio.Event()
    connection_lost = interface.TimeoutProtocol.connection_lost

    def noted(self, exc):
        protocols.append(self)
        connection_lost(self, exc)
        lost.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interface.TimeoutProtocol, "connection_lost", noted)
        _, writer = await asyncio.open_connection(*made.sockets[0].getsockname())
        writer.close()
        async with asyncio.timeout(10):
            await lost.wait()
    made.close()
    dicast.close()
    (protocol,) = protocols
    assert protocol._late is not None and protocol._late.cancelled()
