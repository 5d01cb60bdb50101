"""`dicast batches`, and what the doctor says of a batch that is stuck."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest

from dicast.app.application import create_app
from dicast.app.ledger.batches import BatchRecord, BatchStage, LaneRef
from dicast.app.operator.doctor import batches
from tests.command import at_once, environ

__all__ = ["at_once", "environ"]

SENT = BatchRecord(
    "@b", LaneRef("j", "n", 0), "claude", "m", BatchStage.SENT, requests=5000, formed_at=time.time(),
    sent_at=time.time(), provider_id="batch_7", state="running", state_since=time.time(), done=1200,
)  # fmt: skip


@pytest.fixture
def dicast(environ: dict[str, str]) -> Any:
    return create_app(environ)


def put(dicast: Any, batch: BatchRecord) -> None:
    dicast.store.hset(dicast.keys.node(batch.name), mapping=batch.fields())
    dicast.store.zadd(dicast.keys.at("batches"), {batch.name: 1})


def test_batches_are_listed_shown_and_cancelled(dicast: Any, at_once: Any) -> None:
    assert "There are no batches." in at_once("batches", "list").stderr + at_once("batches", "list").stdout
    put(dicast, SENT)
    assert "running, 1,200 of 5,000 requests done" in " ".join(at_once("batches", "list").stdout.split())
    [listed] = json.loads(at_once("batches", "list", "--json").stdout)
    assert (listed["job"], listed["provider_id"]) == ("j", "batch_7")
    assert "batch_7" in at_once("batches", "show", "@b").stdout
    assert at_once("batches", "show", "@none").returncode == 2
    assert at_once("batches", "cancel", "@none").returncode == 2
    assert at_once("batches", "cancel", "@b").returncode == 0
    assert dicast.ledger.batches()[0].cancelled


def test_what_is_over_is_listed_with_the_others_on_request(dicast: Any, at_once: Any) -> None:
    over = {"name": "@a", "job": "j", "pool": "p", "model": "m", "requests": 3, "end": "ended", "over_at": time.time()}
    dicast.store.lpush(dicast.keys.at("batches_over"), json.dumps(over))
    assert json.loads(at_once("batches", "list", "--json").stdout) == []
    assert json.loads(at_once("batches", "list", "--all", "--json").stdout) == [over]
    assert "over: ended" in at_once("batches", "list", "--all").stdout
    assert "@a" in at_once("batches", "show", "@a").stdout


@pytest.mark.parametrize(
    "batch, trouble",
    [
        (SENT, ""),
        (replace(SENT, state="finalizing"), ""),
        (replace(SENT, state="finalizing", state_since=1.0), "has been finalizing for"),
        (replace(SENT, formed_at=1.0), "was formed"),
        (replace(SENT, note="401: no key"), "does not go on: 401: no key"),
    ],
)
def test_the_doctor_knows_a_batch_that_is_stuck(dicast: Any, batch: BatchRecord, trouble: str) -> None:
    put(dicast, batch)
    [finding] = batches(dicast)
    assert (finding.severity == "warning", trouble in finding.message) == (bool(trouble), True)


def test_jobs_show_says_where_a_job_went_online(dicast: Any, at_once: Any) -> None:
    job = {"id": "j", "items": [{"id": "a", "text": "t"}], "agents": [{"name": "a"}], "road": "auto"}
    dicast.submit({**job, "dimensions": [{"id": "d", "instructions": "Good?"}]})
    key = dicast.keys.at("job", "j", "asking", dicast.ledger.incarnation("j"))
    dicast.store.hset(key, "online:0", '{"pool": "sim", "message": "9 s were left until finish_by"}')
    dicast.store.hset(dicast.keys.at("job", "j"), "moved_online", "3")
    said = " ".join(at_once("jobs", "show", "j").stdout.split())
    assert "road pool 'sim' was asked online: 9 s were left until finish_by; 3 units taken out of a batch" in said
