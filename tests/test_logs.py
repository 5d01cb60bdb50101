from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dicast.app import logs

KEY = "sk-canary-0123456789abcdef"


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    held = {name: logging.getLogger(name).level for name in logs._HELD_AT_WARNING}
    yield
    logging.captureWarnings(False)
    root.handlers = handlers
    root.setLevel(level)
    for name, was in held.items():
        logging.getLogger(name).setLevel(was)


def logged(
    write: Callable[[], object], *, secrets: list[str] | None = None, level: str = "DEBUG", **constants: object
) -> Any:
    """The one line that `write` logs, parsed; asserts what holds of every line."""
    lines = all_logged(write, secrets=secrets, level=level, **constants)
    assert len(lines) == 1
    return lines[0]


def all_logged(
    write: Callable[[], object], *, secrets: list[str] | None = None, level: str = "DEBUG", **constants: object
) -> list[Any]:
    stream = io.StringIO(newline="")
    logs.configure(level, secrets or [], stream, **constants)
    write()
    text = stream.getvalue()
    assert text.isascii()
    assert not set(text) - {chr(c) for c in range(0x20, 0x7F)} - {"\n"}
    assert text == "" or text.endswith("\n")
    for secret in secrets or []:
        if len(secret) >= logs.MIN_SECRET_LENGTH:
            assert secret not in text
    return [orjson.loads(line) for line in text.split("\n")[:-1]]


EVENTS: list[tuple[Callable[..., None], dict[str, Any], list[str], str]] = [
    (logs.queueing, {"queue_depth": 3}, ["event", "agent", "dimension", "queue_depth"], "INFO"),
    (logs.acquired, {"active_slots": 3}, ["event", "agent", "dimension", "active_slots"], "INFO"),
    (logs.released, {"active_slots": 3}, ["event", "agent", "dimension", "active_slots"], "INFO"),
    (
        logs.retrying,
        {"attempt": 1, "status_code": 429, "delay_s": 1.5},
        ["event", "agent", "dimension", "attempt", "status_code", "delay_s"],
        "INFO",
    ),
    (logs.timed_out, {"timeout_s": 120.0}, ["event", "agent", "dimension", "timeout_s"], "WARNING"),
    (logs.judged, {"score": 7}, ["event", "agent", "dimension", "job", "unit", "score"], "INFO"),
    (
        logs.corrupt,
        {"reason": "no JSON", "payload": "<html>"},
        ["event", "agent", "dimension", "reason", "payload"],
        "WARNING",
    ),
    (
        logs.failed,
        {"status_code": None, "elapsed_s": 12.5},
        ["event", "dimension", "agent", "status_code", "elapsed_s"],
        "ERROR",
    ),
]
NAMES = ["queueing", "acquired", "released", "retry", "timeout", "judged", "corrupt", "failed"]


@pytest.mark.parametrize("name, spec", list(zip(NAMES, EVENTS, strict=True)), ids=NAMES)
def test_an_event_begins_with_its_own_keys_in_their_order(
    name: str, spec: tuple[Callable[..., None], dict[str, Any], list[str], str]
) -> None:
    write, own, keys, level = spec
    context = {"job": "j", "unit": "0.1.2", "lease": "w/1"}
    line = logged(lambda: write(agent="strict", dimension="clear", **own, **context), node="w1")
    assert list(line)[: len(keys)] == keys
    assert line["event"] == name
    assert line["level"] == level
    assert {k: line[k] for k in own} == own
    assert {**context, "node": "w1", "agent": "strict", "dimension": "clear"}.items() <= line.items()


def test_events_of_a_job() -> None:
    assert list(logged(lambda: logs.limit_frozen(job="j", limit=5)))[:3] == ["event", "job", "limit"]
    line = logged(lambda: logs.job_completed(job="j", status="cancelled", scored=3, failed=1))
    assert (line["event"], line["status"], line["level"]) == ("job_completed", "cancelled", "INFO")
    line = logged(lambda: logs.over_share(project="a", pool="p", limit=8, projects=3, width=4, share=2, unknown=7))
    assert (line["event"], line["project"], line["limit"], line["level"]) == ("over_share", "a", 8, "WARNING")
    assert (line["width"], line["share"], line["unknown"]) == (4, 2, 7)
    line = logged(lambda: logs.store_away(ConnectionError("refused")))
    assert (line["event"], line["error"], line["level"]) == ("store_away", "ConnectionError: refused", "WARNING")


def test_time_is_utc_with_milliseconds() -> None:
    before = datetime.now(UTC)
    ts = logged(lambda: logs.limit_frozen(job="j", limit=5))["ts"]
    assert ts.endswith("Z")
    assert len(ts) == len("2025-01-01T00:00:00.000Z")
    assert abs((datetime.fromisoformat(ts) - before).total_seconds()) < 10


def test_a_payload_is_cut() -> None:
    line = logged(lambda: logs.corrupt(agent="a", dimension="*", reason="r", payload="x" * 10**6))
    assert line["payload"] == "x" * logs.MAX_PAYLOAD


@pytest.mark.parametrize("level, seen", [("DEBUG", 3), ("INFO", 3), ("WARNING", 2), ("ERROR", 1)])
def test_levels(level: str, seen: int) -> None:
    def write() -> None:
        logs.limit_frozen(job="j", limit=5)
        logs.timed_out(agent="a", dimension="d", timeout_s=1.0)
        logs.failed(agent="a", dimension="d", status_code=None, elapsed_s=1.0)

    assert len(all_logged(write, level=level)) == seen


def test_an_ordinary_record_is_the_event_log() -> None:
    line = logged(lambda: logging.getLogger("celery.worker").warning("%s lost %d", "w1", 3, extra={"queue": "q"}))
    assert list(line) == ["event", "ts", "level", "logger", "message", "queue"]
    assert (line["event"], line["level"], line["logger"]) == ("log", "WARNING", "celery.worker")
    assert (line["message"], line["queue"]) == ("w1 lost 3", "q")


def test_a_library_tells_an_event_by_extras() -> None:
    extra = {"event": "node_lost", "node": "w7", "leases": 4}
    reaper = logging.getLogger("dicast.workers.nodes.reaper")
    line = logged(lambda: reaper.warning("node %s is dead", "w7", extra=extra), node="w1")
    assert (line["event"], line["node"], line["leases"], line["message"]) == ("node_lost", "w7", 4, "node w7 is dead")


def test_an_extra_does_not_forge_time_or_level() -> None:
    line = logged(lambda: logging.getLogger("x").info("m", extra={"ts": "1970", "level": "CRITICAL", "logger": "root"}))
    assert (line["level"], line["logger"]) == ("INFO", "x")
    assert line["ts"] > "2020"


def test_an_exception_is_one_string() -> None:
    def write() -> None:
        try:
            raise ValueError(f"bad\nkey {KEY}")
        except ValueError:
            logging.getLogger("x").exception("it failed", stack_info=True)

    line = logged(write, secrets=[KEY])
    assert line["exception"].startswith("Traceback (most recent call last):\n")
    assert line["exception"].endswith("ValueError: bad\nkey ***")
    assert "test_logs.py" in line["stack"]


def test_a_message_that_does_not_fit_its_arguments_is_still_one_line() -> None:
    line = logged(lambda: logging.getLogger("x").info("%d of %s", *["seven"]))
    assert line["message"] == "%d of %s ('seven',)"


def test_warnings_are_logged() -> None:
    def write() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            logging.captureWarnings(True)
            warnings.warn("old\nstyle", stacklevel=1)

    assert "old\nstyle" in logged(write)["message"]


def test_configuring_again_replaces_the_former_set_up() -> None:
    first = io.StringIO()
    logs.configure("INFO", [], first)
    assert len(all_logged(lambda: logs.limit_frozen(job="j", limit=1))) == 1
    assert first.getvalue() == ""


@pytest.mark.parametrize("level", ["INFO", "ERROR"])
def test_chatty_loggers_are_held(level: str) -> None:
    def write() -> None:
        for name in ("celery.app.trace", "httpx", "openai._base_client"):
            logging.getLogger(name).info("Request options: {'json_data': 'a judged text'}")

    assert all_logged(write, level=level) == []


def test_constants_can_be_bound_later() -> None:
    stream = io.StringIO()
    formatter = logs.configure("INFO", [], stream, pool="p")
    formatter.bind(node="w1")
    logs.limit_frozen(job="j", limit=1)
    assert {"pool": "p", "node": "w1"}.items() <= orjson.loads(stream.getvalue()).items()


# ------------------------------------------------------------------------------------------------------ any content
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.text(), st.text(), st.text(), st.dictionaries(st.sampled_from(["job", "unit", "item", "pool"]), values))
def test_any_content_stays_one_line_and_comes_back(
    agent: str, dimension: str, payload: str, context: dict[str, Any]
) -> None:
    line = logged(lambda: logs.corrupt(agent=agent, dimension=dimension, reason="r", payload=payload, **context))
    assert (line["agent"], line["dimension"], line["payload"]) == (agent, dimension, payload[: logs.MAX_PAYLOAD])
    assert {k: line[k] for k in context} == context


@given(st.text())
def test_any_message_stays_one_line_and_comes_back(text: str) -> None:
    line = logged(lambda: logging.getLogger("x").info("%s", text, extra={"extra": text}))
    assert (line["message"], line["extra"]) == (text, text)


class Odd:
    def __repr__(self) -> str:
        return "<odd\n\x1b[31m>"


@pytest.mark.parametrize(
    "value, want",
    [
        ("\ud800x", "\\ud800x"),
        (2**70, str(2**70)),
        (Odd(), "<odd\n\x1b[31m>"),
        ({1: {2}}, {"1": [2]}),
        (b"raw", "b'raw'"),
        (float("nan"), None),
        ([Odd(), "\udfff"], ["<odd\n\x1b[31m>", "\\udfff"]),
    ],
)
def test_what_json_cannot_hold_is_shown(value: object, want: object) -> None:
    assert logged(lambda: logging.getLogger("x").info("m", extra={"v": value}))["v"] == want


def test_a_structure_without_end_is_cut() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert "[...]" in json.dumps(logged(lambda: logging.getLogger("x").info("m", extra={"v": endless}))["v"])


# ---------------------------------------------------------------------------------------------------------- secrets
def test_secrets_are_masked_wherever_they_stand() -> None:
    def write() -> None:
        logs.corrupt(agent=f"a{KEY}b", dimension="d", reason="r", payload=f'{{"key": "{KEY}"}}', deep=[{KEY: (1, KEY)}])

    line = logged(write, secrets=[KEY], node=KEY)
    assert (line["agent"], line["payload"], line["deep"]) == ("a***b", '{"key": "***"}', [{"***": [1, "***"]}])
    assert line["node"] == "***"


secrets = st.text(st.characters(exclude_categories=["Cs"]), min_size=8, max_size=30).filter(
    lambda s: s not in "abcdefgh level logger event message"
)


@given(secrets, st.text(max_size=5), st.sampled_from(["plain", "repr", "json", "url", "key", "exception"]))
def test_any_secret_is_masked_in_any_dress(secret: str, around: str, dress: str) -> None:
    shown = {"repr": repr(secret), "json": json.dumps(secret), "url": quote(secret, safe="")}.get(dress, secret)
    extra = {"x": {shown: 1}} if dress == "key" else {"x": around + shown + around}
    stream = io.StringIO()
    logs.configure("INFO", [secret], stream)
    if dress == "exception":
        try:
            raise RuntimeError(secret)
        except RuntimeError:
            logging.getLogger("x").exception("m")
    else:
        logging.getLogger("x").info("m", extra=extra)
    line = orjson.loads(stream.getvalue())

    def texts(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            yield from value
            value = list(value.values())
        if isinstance(value, list):
            for one in value:
                yield from texts(one)
        if isinstance(value, str):
            yield value

    assert not any(secret in text for text in texts(line))
    assert any("***" in text for text in texts(line))


@pytest.mark.parametrize("number", [1234567890, 1234567890.5, -12345678901])
def test_a_secret_of_digits_leaves_valid_json(number: float) -> None:
    line = logged(lambda: logging.getLogger("x").info("m", extra={"n": number, "k": 5}), secrets=["12345678"])
    assert "***" in line["n"]
    assert line["k"] == 5


def test_longer_secrets_are_masked_first() -> None:
    line = logged(lambda: logging.getLogger("x").info("abcdefgh-and-more"), secrets=["abcdefgh", "abcdefgh-and-more"])
    assert line["message"] == "***"


def test_placeholders_are_no_secrets() -> None:
    line = logged(lambda: logging.getLogger("x").info("pool ollama"), secrets=["ollama", ""])
    assert line["message"] == "pool ollama"
