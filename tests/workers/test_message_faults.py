"""What Celery would trip over is known before it sees the message."""

import json
from base64 import b64encode
from datetime import UTC, datetime, timedelta

import pytest
from kombu.message import Message

from dicast.workers.broker.dead_letters import BODY_MAX_BYTES, RETURNS, body_fault, fault

HEADERS = {
    "lang": "py", "task": "t", "id": "a", "shadow": None, "eta": None, "expires": None, "group": None,
    "group_index": None, "retries": 0, "timelimit": [None, None], "root_id": "a", "parent_id": None, "argsrepr": "()",
    "kwargsrepr": "{}", "origin": "o", "ignore_result": True, "replaced_task_nesting": 0, "stamped_headers": None,
    "stamps": {}, "dicast": {"job": "j"},
}  # fmt: skip
PROPERTIES = {"correlation_id": "a", "reply_to": "b", "priority": 0}


def test_what_celery_sends_is_well():
    assert fault(HEADERS, PROPERTIES) == ""
    assert fault({**HEADERS, "timelimit": (5, 0.5), "stamped_headers": ["s"], "stamps": {"s": "x"}}, {}) == ""
    soon = (datetime.now(UTC) + timedelta(minutes=5)).isoformat()
    assert fault({**HEADERS, "eta": soon, "expires": soon, "group": "g", "group_index": 3, RETURNS: 4}, {}) == ""
    assert fault({"task": "t", "id": "a"}, {}) == ""


@pytest.mark.parametrize(
    "change",
    [{"timelimit": value} for value in ([1, 2, 3], "12", ["a", None], [-1, None], [float("inf"), 1], [True, 1], 5)]
    + [{name: value} for name in ("id", "root_id", "group", "shadow") for value in (5, ["a"], "\ud800", "x" * 20_000)]
    + [{"id": ""}, {"id": None}, {"retries": -1}, {"retries": "3"}, {"group_index": 0.5}, {"ignore_result": "no"}]
    + [{"stamps": []}, {"stamped_headers": "s"}, {"stamped_headers": [["s"]]}, {"dicast": {"project": "\udfff"}}]
    + [{"anything": 2**70}, {"get": 1}, {"update": 1}, {"__class__": 1}, {"_children": 1}]
    + [{name: "x" * 200_000} for name in ("errbacks", "callbacks", "chain", "chord", "delivery_info", "args")]
    + [{"eta": value} for value in (5, "soon", "9999-12-31T23:59:59", "2024-02-30")],
    ids=repr,
)  # fmt: skip
def test_a_header_that_is_odd_is_known(change):
    assert fault({**HEADERS, **change}, PROPERTIES) == "malformed"


@pytest.mark.parametrize("change", [{"priority": "high"}, {"correlation_id": []}, {"reply_to": 5}], ids=repr)
def test_a_property_that_is_odd_is_known(change):
    assert fault(HEADERS, {**PROPERTIES, **change}) == "malformed"


@pytest.mark.parametrize("headers", [None, [], {}, {"task": 5}, {"id": "a"}], ids=repr)
def test_what_names_no_task_is_no_task_message(headers):
    assert fault(headers, {}) == "no task message"


@pytest.mark.parametrize("change", [{RETURNS: 5}, {RETURNS: "x"}, {"x-delivery-count": 19}], ids=repr)
def test_a_message_that_comes_back_again_and_again_is_known(change):
    assert fault({**HEADERS, **change}, {}) == "comes back"
    assert fault({**HEADERS, RETURNS: 4, "x-delivery-count": 18}, {}) == ""


def message(body, content_type="application/json", encoding="utf-8"):
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Message(text, content_type=content_type, content_encoding=encoding, accept={"application/json"})


SIGNATURE = {"task": "t", "args": [], "kwargs": {}, "options": {}, "subtask_type": None, "immutable": True}


@pytest.mark.parametrize(
    "embed",
    [None, {}, {"callbacks": None, "errbacks": [SIGNATURE], "chain": [SIGNATURE], "chord": SIGNATURE}],
)  # fmt: skip
def test_a_body_that_can_be_called_with_is_well(embed):
    assert body_fault(message([["j", 0], {"a": 1}, embed])) == ""


@pytest.mark.parametrize(
    "body",
    [[1, 2, 3], [], [[], {}], [[], {}, {}, {}], {}, None, "x", 5, [{}, {}, None], [[], [], None], [[], {}, 3],
     [[], {}, {"other": 1}], [[], {}, {"chord": 5}], [[], {}, {"chord": {"task": 1}}],
     [[], {}, {"callbacks": SIGNATURE}],
     [[], {}, {"errbacks": [SIGNATURE] * 101}],
     [[], {}, {"errbacks": [5]}], [[], {}, {"chain": [{**SIGNATURE, "options": 5}]}], [["\ud800"], {}, None],
     [[2**70], {}, None]],
    ids=repr,
)  # fmt: skip
def test_a_body_that_nothing_can_be_called_with_is_known(body):
    assert body_fault(message(body)) == "malformed"


@pytest.mark.parametrize(
    "odd, reason",
    [
        (message(b"gASV.", "application/x-python-serialize"), "invalid task"),
        (message(b"\xff\xfe"), "undecodable"),
        (message(b"[", encoding="no such one"), "undecodable"),
        (message(b"[]", encoding="zlib"), "malformed"),
        (message(b64encode(b"x" * BODY_MAX_BYTES)), "too large"),
        (message(b"[" * 100_000), "undecodable"),
    ],
)  # fmt: skip
def test_a_body_that_cannot_be_read_is_known(odd, reason):
    assert body_fault(odd) == reason
