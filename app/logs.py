"""Structured logs: one event a line, each a JSON object in plain ASCII.

Every line holds `event`, `ts` (ISO, UTC, milliseconds), `level` and `logger`. The typed events below begin with their
own keys, in the order in which they are written here; context (job, unit, pool, node, lease, item, ...) follows. The
`dimension` of a batched call names all of them. All other log records, Celery's too, are the event "log" with
`message`, their extras, and `exception` as one string.

ASCII, because then no value can end a line, move a terminal's cursor, reorder what is read or depend on an encoding.
Secrets are masked wherever they stand. Judged texts do not belong into logs; `corrupt` alone carries a piece of a
model's answer.
"""

from __future__ import annotations

import functools
import inspect
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, ParamSpec, TextIO
from urllib.parse import quote

import orjson

from dicast.workers.admission.request import GatedUnit

MIN_SECRET_LENGTH = 8
"""Shorter values are placeholders ("ollama", "none") of servers without keys; masking them would garble plain words."""
MASK = "***"
MAX_PAYLOAD = 2000
MAX_DEPTH = 20

# Loggers whose INFO or DEBUG lines repeat our events, or carry results, addresses and request bodies.
_HELD_AT_WARNING = (
    "celery.app.trace",
    "celery.worker.strategy",
    "httpx",
    "httpx2",
    "httpcore",
    "httpcore2",
    "openai",
    "anthropic",
    "aiohttp",
)
_STANDARD = frozenset(vars(logging.LogRecord("", 0, "", 0, None, None, None))) | {"message", "asctime", "taskName"}
_FIELDS = "event_fields"
_NOT_ASCII = re.compile(r"[^ -~]+")

_log = logging.getLogger("dicast")

P = ParamSpec("P")


def configure(
    level: int | str, secrets: Iterable[str], stream: TextIO | None = None, **constants: object
) -> JsonFormatter:
    """Make JSON lines on `stream` (None: standard error) the only output of logging, warnings included.

    Calling it again replaces the former set-up.

    `constants` (say, node="w1") are added to every line; more can be added later by the returned formatter's `bind`.
    In a worker, call it from a receiver of Celery's `setup_logging` signal, so that Celery sets up none of its own.
    """
    formatter = JsonFormatter(secrets, **constants)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in _HELD_AT_WARNING:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))
    logging.captureWarnings(True)
    return formatter


class JsonFormatter(logging.Formatter):
    """Renders any log record as one line. Holds: the line is ASCII, is one JSON object, and contains no secret."""

    def __init__(self, secrets: Iterable[str] = (), **constants: object) -> None:
        super().__init__()
        self._constants = constants
        self._secrets = _spellings(secrets)
        self._needles = [orjson.dumps(secret)[1:-1] for secret in self._secrets]

    def bind(self, **constants: object) -> None:
        """Add constants to every line from now on."""
        self._constants = {**self._constants, **constants}

    def format(self, record: logging.LogRecord) -> str:
        standard = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")[:-6] + "Z",
            "level": record.levelname,
            "logger": record.name,
        }
        fields = record.__dict__.get(_FIELDS)
        if fields is not None:
            line = {**fields, **standard}
        else:
            extras = {k: v for k, v in record.__dict__.items() if k not in _STANDARD}
            line = {"event": extras.pop("event", "log"), **standard, "message": _message(record)}
            if record.exc_info:
                line["exception"] = self.formatException(record.exc_info)
            if record.stack_info:
                line["stack"] = record.stack_info
            line = {**extras, **line} if extras.keys() & line.keys() else {**line, **extras}
        for name, value in self._constants.items():
            line.setdefault(name, value)
        return self._render(line)

    def _render(self, line: dict[str, Any]) -> str:
        try:
            rendered = orjson.dumps(line)
        except TypeError:
            rendered = orjson.dumps(_plain(line))
        if any(needle in rendered for needle in self._needles):
            rendered = orjson.dumps(self.masked(orjson.loads(rendered)))
        if rendered.isascii() and b"\x7f" not in rendered:
            return rendered.decode("ascii")
        return _NOT_ASCII.sub(_escaped, rendered.decode())

    def masked(self, value: Any) -> Any:
        """Return a value with secrets masked within it. The line as a whole is not searched, since masking a number in
        JSON would break it."""
        if isinstance(value, dict):
            return {self.masked(k): self.masked(v) for k, v in value.items()}
        if isinstance(value, list):
            return [self.masked(v) for v in value]
        text = value if isinstance(value, str) else str(value)
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return text if isinstance(value, str) or MASK in text else value


def _spellings(secrets: Iterable[str]) -> list[str]:
    """Return the forms in which secrets appear within texts: as they are, in URLs, JSON and reprs; longest first."""
    spellings = set()
    for secret in secrets:
        if len(secret) >= MIN_SECRET_LENGTH:
            spellings |= {secret, quote(secret, safe=""), quote(secret), json.dumps(secret)[1:-1], repr(secret)[1:-1]}
    return sorted(spellings, key=lambda spelling: (-len(spelling), spelling))


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError, KeyError):
        return f"{record.msg} {record.args!r}"


def _plain(value: Any, depth: int = 0) -> Any:
    """Return the nearest value that JSON can hold; lone surrogates are escaped, and objects become their reprs."""
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**64 else str(value)
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if depth < MAX_DEPTH:
        if isinstance(value, Mapping):
            return {str(_plain(str(k))): _plain(v, depth + 1) for k, v in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [_plain(v, depth + 1) for v in value]
    return _plain(repr(value), depth)


def _escaped(match: re.Match[str]) -> str:
    return "".join("\\u007f" if char == "\x7f" else json.dumps(char)[1:-1] for char in match[0])


def _emit(level: int, fields: Mapping[str, object]) -> None:
    if _log.isEnabledFor(level):
        # Made by hand: finding the caller's file and line, which no line shows, would cost as much as all the rest.
        record = logging.LogRecord(_log.name, level, "", 0, str(fields["event"]), None, None)
        record.__dict__[_FIELDS] = fields
        _log.handle(record)


def _event(level: int, name: str) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Turn a signature into a function that writes the line: its keys in the signature's order, then the context."""

    def decorate(declared: Callable[P, None]) -> Callable[P, None]:
        keys = [
            parameter.name
            for parameter in inspect.signature(declared).parameters.values()
            if parameter.kind is parameter.KEYWORD_ONLY
        ]

        @functools.wraps(declared)
        def write(*_: P.args, **values: P.kwargs) -> None:
            _emit(level, {"event": name, **{key: values[key] for key in keys}, **values})

        return write

    return decorate


# ---------------------------------------------------------------------------------------------------------- events
@_event(logging.INFO, "queueing")
def queueing(*, agent: str, dimension: str, queue_depth: int, **context: object) -> None:
    """A unit waits: it was refused a lease when it first asked for one, or there was no slot to ask for; those that get
    theirs at once are not told. One that has waited in the queue is told of when it comes out of it. `queue_depth`
    units wait: at this worker, and in the queue as counted not long ago. The context's `reason` says what for (`limit`,
    `slots`, `breaker`, a budget's name, ...), `wait_s` for how long at least."""


@_event(logging.INFO, "acquired")
def acquired(*, agent: str, dimension: str, active_slots: int, **context: object) -> None:
    """A lease was granted: written after the grant. `active_slots` calls are open with it, over all pools; of those
    granted together, each is counted after the one before."""


@_event(logging.INFO, "released")
def released(*, agent: str, dimension: str, active_slots: int, **context: object) -> None:
    """A lease goes back: written before the store hears of it, so that the log, too, ends it before the next begins."""


@_event(logging.INFO, "cut")
def cut(*, agent: str, dimension: str, active_slots: int, counts_on_s: float, **context: object) -> None:
    """A call was cut, and the provider may still be working on it: its lease counts for `counts_on_s` more, and is one
    of the `active_slots` until then. When it ends, a "released" with the reason "expired" tells it."""


@_event(logging.INFO, "retry")
def retrying(
    *, agent: str, dimension: str, attempt: int, status_code: int | None, delay_s: float, **context: object
) -> None:
    """Call number `attempt` of a unit failed with `status_code` (None: no answer); the next comes after `delay_s`. The
    context's `kind` and `reason` say why."""


@_event(logging.WARNING, "timeout")
def timed_out(*, agent: str, dimension: str, timeout_s: float, **context: object) -> None:
    """A call was cut at its deadline."""


@_event(logging.INFO, "judged")
def judged(*, agent: str, dimension: str, job: str, unit: str, score: float, **context: object) -> None:
    """A call brought a score that counts; a batched call tells it of each dimension."""


@_event(logging.INFO, "score_as_written")
def score_as_written(*, agent: str, dimension: str, job: str, unit: str, reason: str, **context: object) -> None:
    """No expected score could be had from the tokens of an answer (score_from: logprobs): its written score stands."""


def corrupt(*, agent: str, dimension: str, reason: str, payload: str, **context: object) -> None:
    """An answer, or a part of it, was no opinion; `payload` is what came, cut to `MAX_PAYLOAD` characters. The
    context's `missing` names dimensions that a batch left out."""
    fields = {"event": "corrupt", "agent": agent, "dimension": dimension, "reason": reason}
    _emit(logging.WARNING, {**fields, "payload": payload[:MAX_PAYLOAD], **context})


@_event(logging.ERROR, "failed")
def failed(*, dimension: str, agent: str, status_code: int | None, elapsed_s: float, **context: object) -> None:
    """A unit has its last error: no attempt is left, or none would help."""


@_event(logging.ERROR, "stopped_asking")
def stopped_asking(*, job: str, pool: str, model: str, after: int, reason: str, **context: object) -> None:
    """A job asks a model no more, whose first `after` calls all ended in this error (0: none could be made)."""


@_event(logging.WARNING, "parameter_dropped")
def parameter_dropped(*, job: str, pool: str, model: str, parameter: str, reason: str, **context: object) -> None:
    """A model refuses a parameter, and is asked without it from now on."""


@_event(logging.INFO, "limit_frozen")
def limit_frozen(*, job: str, limit: int, **context: object) -> None:
    """A job starts, with this limit until it ends."""


@_event(logging.INFO, "question_answered")
def question_answered(*, job: str, state: str, items: int, **context: object) -> None:
    """So many items have answered a job's question; no more of it is published."""


@_event(logging.INFO, "job_completed")
def job_completed(*, job: str, status: str, scored: int, failed: int, **context: object) -> None:
    """A job ended; `status` tells whether it was completed or cancelled."""


@_event(logging.WARNING, "over_share")
def over_share(
    *, project: str, pool: str, limit: int, projects: int, width: int, share: int, unknown: int | None,
    **context: object,
) -> None:  # fmt: skip
    """A project asks for more calls than its `share` of the pool's `limit`, while others that have less of it wait, or
    for more than its own maximum. `width` is what it wants: its open calls, and those of its units that wait at this
    worker's gate or in the queue. Not in it: what other workers' gates hold, and the `unknown` units of the queue of
    which nobody knows whose they are; None if the broker does not tell how many there are."""


def store_away(error: BaseException, **context: object) -> None:
    """The store does not answer; whoever asked waits and asks again."""
    _emit(logging.WARNING, {"event": "store_away", "error": f"{type(error).__name__}: {error}", **context})


class GateLog:
    """Writes the gate's events into the log, under the names that a unit's message carries."""

    def queueing(self, unit: GatedUnit, pool: str, depth: int, reason: str, wait_s: float | None) -> None:
        wait: dict[str, Any] = {} if wait_s is None else {"wait_s": round(wait_s, 3)}
        queueing(queue_depth=depth, pool=pool, reason=reason, **wait, **_unit_fields(unit))

    def acquired(self, unit: GatedUnit, pool: str, lease: str, open_calls: int) -> None:
        acquired(active_slots=open_calls, pool=pool, lease=lease, **_unit_fields(unit))

    def released(self, unit: GatedUnit, pool: str, lease: str, open_calls: int) -> None:
        released(active_slots=open_calls, pool=pool, lease=lease, **_unit_fields(unit))

    def cut(self, unit: GatedUnit, pool: str, lease: str, open_calls: int, counts_on_s: float) -> None:
        cut(active_slots=open_calls, counts_on_s=round(counts_on_s, 3), pool=pool, lease=lease, **_unit_fields(unit))

    def over_share(
        self, unit: GatedUnit, pool: str, limit: int, projects: int, *, width: int, share: int, unknown: int | None
    ) -> None:
        over_share(
            project=unit.project, pool=pool, limit=limit, projects=projects, width=width, share=share, unknown=unknown
        )


def _unit_fields(unit: GatedUnit) -> dict[str, Any]:
    labels = {name: str(unit.labels.get(name, "")) for name in ("agent", "dimension", "unit")}
    return {**labels, "job": unit.job}
