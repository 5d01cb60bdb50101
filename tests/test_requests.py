"""What monitors and listeners are told of a unit that was terminated, by the request that a worker makes of it."""

import json
from types import SimpleNamespace

import pytest
from celery.signals import task_revoked
from celery.worker.request import create_request_cls
from kombu import Message

from dicast.app.domain.opinion import ErrorKind
from dicast.app.operator.requests import UnitRequest, _end_event
from dicast.app.pipeline.call_facts import TASK_END, NextSteps
from dicast.app.tasks import app, judge_dimension
from dicast.workers.admission.request import GatedUnit, Lease
from dicast.workers.policy.calls import CallOutcome


class Monitors:
    enabled = True

    def __init__(self):
        self.told = []

    def send(self, type, **fields):
        self.told.append(
            (type, {name: fields[name] for name in ("terminated", "expired", "exception") if name in fields})
        )


@pytest.fixture
def heard():
    """The ids that a listener to Celery's signal was told of."""
    ids = []

    def listen(request=None, terminated=None, **_):
        assert terminated
        ids.append(request.id)

    task_revoked.connect(listen)
    yield ids
    task_revoked.disconnect(listen)


def lease():
    return Lease(lambda _: None, lambda call: call(), "l", GatedUnit.from_header({}), 100.0)


def request_of(task_id, monitors):
    sent = app.amqp.as_task_v2(task_id, judge_dimension.name, args=("j", "i", 0, 0, "0", {}))
    acknowledged = []
    message = Message(
        body=json.dumps(sent.body), delivery_tag="t", content_type="application/json", content_encoding="utf-8",
        delivery_info={"exchange": "", "routing_key": "provider.p"}, headers=sent.headers, properties=sent.properties,
    )  # fmt: skip
    kind = create_request_cls(UnitRequest, judge_dimension, SimpleNamespace(apply_async=None), "w@here", monitors)
    request = kind(
        message, on_ack=lambda *_: acknowledged.append(task_id), app=app, task=judge_dimension, eventer=monitors
    )
    return request, acknowledged


@pytest.mark.parametrize("given", [lease, lambda: None], ids=["lease", "no lease"])
def test_one_without_an_answer_is_told_to_be_revoked(heard, given):
    monitors = Monitors()
    request, acknowledged = request_of("a", monitors)
    request.lease = given()
    request.terminate(None)
    assert not heard
    request.on_success((False, None, 0.1))
    assert monitors.told == [("task-revoked", {"terminated": True, "expired": False})]
    assert heard == acknowledged == ["a"]
    request.acknowledge()
    assert heard == acknowledged == ["a"]


def test_one_whose_call_had_ended_is_told_to_be_done(heard):
    monitors = Monitors()
    request, acknowledged = request_of("a", monitors)
    request.lease = answered = lease()
    answered.outcome = CallOutcome(200)
    request.terminate(None)
    request.on_success((False, None, 0.1))
    assert monitors.told == [("task-succeeded", {})]
    assert (heard, acknowledged) == ([], ["a"])


def test_one_that_was_not_terminated_is_told_to_be_done(heard):
    monitors = Monitors()
    request, _ = request_of("a", monitors)
    request.on_success((False, None, 0.1))
    assert (monitors.told, heard) == ([("task-succeeded", {})], [])


def test_terminating_lets_no_call_begin_and_ends_the_one_that_is_open():
    request, _ = request_of("a", Monitors())
    request.lease = kept = lease()
    kept.may_begin = lambda: True
    ended = []
    kept.end_call = lambda: ended.append("call")
    request.terminate(None)
    assert (kept.may_begin(), kept.is_cut, ended) == (False, True, ["call"])


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        (NextSteps(True, summary="scored clear 4"), [("task-succeeded", {})]),
        (
            NextSteps(True, summary="error: rejected", errors=[ErrorKind.REJECTED], failure="rejected: no such model"),
            [("task-failed", {"exception": "rejected: no such model"})],
        ),
        (
            NextSteps(True, summary="scored a 4", errors=[ErrorKind.MALFORMED], failure="malformed: no JSON"),
            [("task-failed", {"exception": "malformed: no JSON"})],
        ),
        (
            NextSteps(True, summary="error: cancelled: it was revoked", errors=[ErrorKind.CANCELLED]),
            [("task-revoked", {"terminated": False, "expired": False})],
        ),
        (
            NextSteps(False, summary="waits 2.0 s after server: 503", retry=True),
            [("task-retried", {"exception": "waits 2.0 s after server: 503"})],
        ),
        (NextSteps(False), []),
    ],
    ids=["scored", "failed", "partly failed", "cancelled", "retried", "in other hands"],
)
def test_monitors_are_told_what_became_of_a_unit(steps, told):
    monitors = Monitors()
    request, acknowledged = request_of("a", monitors)
    request.request_dict[TASK_END].steps = steps
    request.on_success((False, steps.summary, 0.1))
    assert monitors.told == told
    assert acknowledged == ["a"]


@pytest.mark.parametrize(
    ("steps", "event"),
    [
        (NextSteps(True, retry=True, summary="429"), ("task-retried", {"exception": "429", "traceback": ""})),
        (
            NextSteps(True, errors=[ErrorKind.MALFORMED], failure="no JSON"),
            ("task-failed", {"exception": "no JSON", "traceback": ""}),
        ),
        (NextSteps(True), ("task-succeeded", {"runtime": 1.0})),
        (NextSteps(False), ("", {})),
    ],
)
def test_monitors_are_told_how_a_unit_ended(steps, event):
    assert _end_event(steps, {"runtime": 1.0}) == event
