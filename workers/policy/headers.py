"""Rate-limit headers of providers and gateways, read into one form.

Every dialect states the same few facts: how much is allowed, how much is left, when that changes, and over which time
it counts. The meaning of names is in tables (`Role` and below it), values are parsed by `count`, `reset`, `duration`
and `instant`, fields that carry lists and parameters by `items`, and `Retry-After` by `retry_after`. Nothing here knows
a provider by its name: a header that follows the grammar is read, whoever sends it. One that cannot be read is ignored:
a provider's typing error must not stop the traffic. The parsers raise nothing.

The words of which the names of rate-limit headers are made:

    <family> - <role, unit, period and qualifiers in any order>

`x-ratelimit-remaining-tokens-minute`, `anthropic-ratelimit-input-tokens-remaining` and
`x-ratelimit-api_key-limit-requests` are all of this form. A word that is in no table is a qualifier: it only tells one
budget from another.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum, StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

__all__ = ["NO_READINGS", "BudgetUnit", "Reading", "Readings", "is_about_limits", "read_limits", "retry_after"]


class BudgetUnit(StrEnum):
    """What a budget counts."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    INPUT_TOKENS = "input_tokens"
    OUTPUT_TOKENS = "output_tokens"


class Reading(NamedTuple):
    """One budget as the provider reported it when the call arrived.

    budget     its name among the others of one dialect
    limit      0 if it is not reported
    period_s   over which it counts, if a name or a policy says so; 0 if it is not reported
    reset_s    seconds to the reported reset; None if there is none. Counted from the send of the call, or from its
               answer if the provider reported an instant (`from_answer`)
    grain_s    the resolution of the reset, in seconds
    bare       the reset was a number without a unit: seconds, or milliseconds
    """

    budget: str
    unit: BudgetUnit
    limit: float
    remaining: float
    period_s: float = 0.0
    reset_s: float | None = None
    grain_s: float = 0.0
    from_answer: bool = False
    bare: bool = False


class Readings(NamedTuple):
    """All that one answer says about limits. `retry_after_s` counts from the answer, in steps of `retry_grain_s`.
    `unknown` are names of headers that seem to be about limits and could not be read.

    They do not depend on the dialect.
    """

    budgets: tuple[Reading, ...] = ()
    retry_after_s: float | None = None
    retry_grain_s: float = 0.0
    unknown: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self != NO_READINGS

    @classmethod
    def from_list(cls, raw: Sequence[Any]) -> Readings:
        """Read the form stored as JSON; what an older version wrote in another form gives no readings."""
        if len(raw) != len(cls._fields) or not isinstance(raw[0], list):
            return NO_READINGS
        budgets, retry_after_s, retry_grain_s, unknown = raw
        if any(len(budget) != len(Reading._fields) for budget in budgets):
            return NO_READINGS
        return cls(
            tuple(Reading(name, BudgetUnit(unit), *rest) for name, unit, *rest in budgets),
            retry_after_s,
            retry_grain_s,
            tuple(unknown),
        )


NO_READINGS = Readings()


LONGEST_TEXT = 200
MOST = 1e15
"""A larger count is ignored."""
LONGEST_S = 400 * 86400.0
UNIX_S, UNIX_MS = 1e9, 1e11
"""Bare numbers from here on are instants: no budget lasts for 30 years."""
SAME_CLOCK_S = 2.0
"""A `date` this near to our own clock is by the same clock: it is in whole seconds, and arrives late."""


class Reset(NamedTuple):
    """A reset: `seconds` from now, or Unix time if `instant`; its resolution is `grain_s`. For `bare` see `Reading`."""

    seconds: float
    instant: bool
    grain_s: float
    bare: bool = False


_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_PART = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|d|h|m|s)", re.ASCII)
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


_LEAP_SECOND = re.compile(r"(:\d\d):60\b", re.ASCII)
"""23:59:60, which HTTP dates may hold (RFC 9110 §5.6.7)."""


def number(text: str) -> float | None:
    """Return a finite number; None for anything else."""
    text = text.strip()
    if len(text) > LONGEST_TEXT or not _NUMBER.fullmatch(text):
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def count(text: str) -> float | None:
    """Return an amount of calls or tokens; None if none is given (Azure's -1) or it is implausible."""
    value = number(text)
    return value if value is not None and 0.0 <= value <= MOST else None


def reset(text: str) -> Reset | None:
    """Parse `6m0s`, `120ms`, `7.5`, Unix seconds or milliseconds, RFC 3339 or an HTTP date; None for anything else."""
    text = text.strip()
    if len(text) > LONGEST_TEXT:
        return None
    value = number(text)
    if value is not None:
        return _bare(text, value)
    lasting = duration(text)
    if lasting is not None:
        coarse = text.endswith("s") and not text.endswith("ms") and "." not in text
        return Reset(lasting, instant=False, grain_s=1.0 if coarse else 0.001)
    at = instant(text)
    if at is None:
        return None
    return Reset(at, instant=True, grain_s=0.001 if at % 1.0 else 1.0)


def _bare(text: str, value: float) -> Reset | None:
    if value < 0.0 or value > 1e14:
        return None
    whole = "." not in text and "e" not in text.lower()
    if value >= UNIX_MS:
        return Reset(value / 1000.0, instant=True, grain_s=1.0 if value % 1000.0 == 0.0 else 0.001)
    if value >= UNIX_S:
        return Reset(value, instant=True, grain_s=1.0 if whole else 0.001)
    if value > 1000.0 * LONGEST_S:
        return None
    return Reset(value, instant=False, grain_s=1.0 if whole else 0.001, bare=True)


def duration(text: str) -> float | None:
    """Return the seconds of a Go duration; None for anything else, such as a number alone."""
    parts = list(_PART.finditer(text))
    if not parts or "".join(part.group() for part in parts) != text:
        return None
    seconds = sum(float(part.group(1)) * _SECONDS[part.group(2)] for part in parts)
    return seconds if seconds <= LONGEST_S else None


def instant(text: str) -> float | None:
    """Return the Unix time of an RFC 3339 or HTTP date; one without a zone is UTC."""
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        try:
            parsed = parsedate_to_datetime(_LEAP_SECOND.sub(r"\1:59", text))
        except (ValueError, TypeError, IndexError, OverflowError):
            return None
    try:
        return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def provider_now(date: str, wall_s: float) -> float:
    """Return the Unix time by the provider's clock, as its `date` header shows it, when ours says `wall_s`."""
    provider_s = instant(date) if 0 < len(date) <= LONGEST_TEXT else None
    if provider_s is None or abs(provider_s - wall_s) <= SAME_CLOCK_S:
        return wall_s
    return provider_s + 0.5


MOST_ITEMS = 8
_SPLIT = re.compile(r""",(?=(?:[^"]*"[^"]*")*[^"]*$)""")
WINDOW_UNITS = {
    "": BudgetUnit.REQUESTS,
    "requests": BudgetUnit.REQUESTS,
    "request": BudgetUnit.REQUESTS,
    "tokens": BudgetUnit.TOKENS,
    "token": BudgetUnit.TOKENS,
    "input-tokens": BudgetUnit.INPUT_TOKENS,
    "output-tokens": BudgetUnit.OUTPUT_TOKENS,
}


class ListItem(NamedTuple):
    """One item of a list: its value without quotes, and its parameters."""

    value: str
    parameters: dict[str, str]


def items(text: str) -> list[ListItem]:
    """Return the items of a list, at most `MOST_ITEMS`.

    Such lists are the IETF drafts' `RateLimit` and `RateLimit-Policy`, and gateways' likes:

        RateLimit: "burst";r=50;t=30, "daily";r=900;t=4000
        RateLimit-Policy: "burst";q=100;w=60;qu="tokens"
        RateLimit: limit=100, remaining=50, reset=5
        RateLimit-Policy: 100;w=60
        X-RateLimit-Limit: 600, 600;w=60;name="llm"
        X-RateLimit-Limit: 1, 15000
    """
    parsed = []
    for part in _SPLIT.split(text[: 4 * LONGEST_TEXT])[:MOST_ITEMS]:
        value, *rest = part.split(";")
        pairs = (parameter.partition("=") for parameter in rest)
        parsed.append(
            ListItem(_bare_item(value), {name.strip().lower(): _bare_item(argument) for name, _, argument in pairs})
        )
    return parsed


def _bare_item(text: str) -> str:
    return text.strip().strip('"').strip()


def period(item: ListItem) -> float:
    """Return the item's window in seconds; 0 if it has none."""
    return count(item.parameters.get("w", "")) or 0.0


def ietf(field: str, policy: str) -> list[Reading]:
    """Return the budgets of a `RateLimit` field; units other than calls and tokens are left out."""
    policies = items(policy) if policy else []
    if "remaining=" in field and ";r=" not in field:
        return _draft_7(field, policies)
    readings = []
    for item in items(field):
        matching = [other for other in policies if other.value == item.value]
        if not matching and len(policies) == 1:
            matching = policies
        terms = {**(matching[0].parameters if matching else {}), **item.parameters}
        unit = WINDOW_UNITS.get(terms.get("qu", "").lower())
        remaining = count(terms.get("r", ""))
        if unit is None or remaining is None:
            continue
        limit, window = count(terms.get("q", "")), count(terms.get("w", "")) or 0.0
        readings.append(_reading(f"ratelimit {item.value}"[:80], unit, limit, remaining, terms.get("t", ""), window))
    return readings


def _draft_7(field: str, policies: list[ListItem]) -> list[Reading]:
    terms = dict(pair for item in items(field) if len(pair := item.value.split("=", 1)) == 2)
    terms = {name.strip().lower(): value for name, value in terms.items()}
    remaining = count(terms.get("remaining", ""))
    if remaining is None:
        return []
    limit = count(terms.get("limit", ""))
    window = next((period(p) for p in policies if limit is None or count(p.value) == limit), 0.0)
    return [_reading("ratelimit", BudgetUnit.REQUESTS, limit, remaining, terms.get("reset", ""), window)]


def _reading(
    name: str, unit: BudgetUnit, limit: float | None, remaining: float, reset_text: str, period_s: float
) -> Reading:
    parsed = reset(reset_text)
    if parsed is None or parsed.instant:
        return Reading(name, unit, limit or 0.0, remaining, period_s)
    return Reading(name, unit, limit or 0.0, remaining, period_s, parsed.seconds, parsed.grain_s)


class Wait(NamedTuple):
    """A requested wait: `seconds` from the answer, from 0 to `LONGEST_S`, and their resolution."""

    seconds: float
    grain_s: float


def retry_after(headers: Iterable[tuple[str, str]], wall_s: float) -> Wait | None:
    """Return how long an answer that was read at `wall_s` (Unix time) asks to wait; None if it does not, or if what it
    says cannot be read.

    `Retry-After` holds seconds or an HTTP date (RFC 9110 §10.2.3). Fractions, exponents and RFC 3339 dates occur, and
    are accepted. What is negative or past means now; what is longer than `LONGEST_S` is cut to it. A date is by the
    server's clock, so it counts from the answer's own `date`, whatever our clock says. A usable `retry-after-ms` is
    preferred, because it is finer. Of several values the longest counts, since earlier retries would fail.
    """
    pairs = [(name.lower(), value) for name, value in headers]
    fine = [wait for name, value in pairs if name == "retry-after-ms" for wait in _milliseconds(value)]
    if fine:
        return max(fine)
    dates = (instant(value) for name, value in pairs if name == "date" and len(value) <= LONGEST_TEXT)
    now_s = next((date for date in dates if date is not None), wall_s)
    return max((wait for name, value in pairs if name == "retry-after" for wait in _waits(value, now_s)), default=None)


def _milliseconds(value: str) -> list[Wait]:
    return [Wait(_within(delay / 1000.0), 0.001) for delay, _ in _split_delays(value) if delay is not None]


def _waits(value: str, now_s: float) -> list[Wait]:
    """Return all waits in one value of `Retry-After`; a proxy may have joined several with commas."""
    parts = _split_delays(value)
    waits = [Wait(_within(delay), 1.0 if delay % 1.0 == 0.0 else 0.01) for delay, _ in parts if delay is not None]
    until = instant(",".join(text for delay, text in parts if delay is None).strip())
    return waits if until is None else [*waits, Wait(_within(until - now_s), 1.0)]


def _split_delays(value: str) -> list[tuple[float | None, str]]:
    """Return the parts of a list, each with its number, or None where it is none, as in a part of a date."""
    texts = value[:LONGEST_TEXT].split(",")
    return [(float(text) if _NUMBER.fullmatch(text.strip()) else None, text) for text in texts]


def _within(seconds: float) -> float:
    return max(0.0, min(LONGEST_S, seconds))


class Role(Enum):
    """What the value is. IGNORED: something that is not needed here."""

    LIMIT = "limit"
    REMAINING = "remaining"
    RESET = "reset"
    PERIOD = "period"
    IGNORED = "ignored"


FAMILIES = (
    "anthropic-ratelimit",
    "anthropic-priority",
    "x-ai-ratelimit",
    "x-ratelimit",
    "x-rate-limit",
    "ratelimit",
    "x-tokenlimit",
    "x-trial-endpoint",
)
UNIT_OF_FAMILY = {"x-tokenlimit": BudgetUnit.TOKENS}

ROLES = {
    "limit": Role.LIMIT,
    "remaining": Role.REMAINING,
    "reset": Role.RESET,
    "renewalperiod": Role.PERIOD,
    **dict.fromkeys(
        (
            "type", "timeremaining", "status", "utilization", "over", "used", "cost", "policy", "scope", "bucket",
            "resource", "claim", "fallback", "overage", "observed", "percentage", "threshold", "global",
        ),
        Role.IGNORED,
    ),
}  # fmt: skip
UNITS = {
    **dict.fromkeys(("requests", "request", "req", "reqs", "call", "calls"), BudgetUnit.REQUESTS),
    **dict.fromkeys(("tokens", "token", "tok", "toks"), BudgetUnit.TOKENS),
    **dict.fromkeys(("input", "prompt"), BudgetUnit.INPUT_TOKENS),
    **dict.fromkeys(("output", "generated", "completion"), BudgetUnit.OUTPUT_TOKENS),
}
PERIODS = {
    **dict.fromkeys(("second", "sec", "1s"), 1.0),
    "10s": 10.0,
    **dict.fromkeys(("minute", "min", "1m", "60s"), 60.0),
    **dict.fromkeys(("hour", "1h"), 3600.0),
    "5h": 5 * 3600.0,
    **dict.fromkeys(("day", "daily", "1d", "24h"), 86400.0),
    **dict.fromkeys(("week", "7d"), 7 * 86400.0),
    **dict.fromkeys(("month", "monthly", "30d"), 30 * 86400.0),
}
SILENT = frozenset({"per", "after", "endpoint"})
"""Words that add nothing. (`reset-after` is a reset.)"""


class Name(NamedTuple):
    """A parsed header name. `budget` is the same for all headers of one budget."""

    role: Role
    budget: str
    unit: BudgetUnit
    period_s: float


@lru_cache(maxsize=512)
def parse(name: str) -> Name | None:
    """Parse a name in lower case; returns None if it has no known form."""
    family = next((family for family in FAMILIES if name == family or name.startswith(family + "-")), None)
    if family is None:
        return None
    role, unit, period_s, budget_words = None, UNIT_OF_FAMILY.get(family), 0.0, [family]
    for word in filter(None, re.split(r"[-.]", name.removeprefix(family))):
        if word in ROLES and (role is None or ROLES[word] is Role.IGNORED):
            role = ROLES[word]
            continue
        if word in SILENT:
            continue
        budget_words.append(word)
        if word in UNITS and (unit is None or unit is BudgetUnit.TOKENS):
            unit = UNITS[word]
        period_s = PERIODS.get(word, period_s)
    if role is None:
        return None
    return Name(role, "-".join(budget_words)[:80], unit or BudgetUnit.REQUESTS, period_s)


_SEEMS = re.compile(r"rate-?limit|token-?limit|quota", re.ASCII)


def seems_about_limits(name: str) -> bool:
    """Return whether a header that cannot be read should be reported to people."""
    return _SEEMS.search(name) is not None


MOST_BUDGETS = 12
MOST_UNKNOWN = 8
RETRY = frozenset({"retry-after", "retry-after-ms"})
IETF, IETF_POLICY = "ratelimit", "ratelimit-policy"
POLICIES = frozenset({IETF_POLICY, "x-ratelimit-policy"})


def is_about_limits(name: str) -> bool:
    """Return whether `read_limits` looks at a header of this name."""
    lower = name.lower()
    return lower == "date" or lower in RETRY or parse(lower) is not None or seems_about_limits(lower)


def read_limits(headers: Mapping[str, str], wall_s: float) -> Readings:
    """Return what an answer's headers say about limits.

    `wall_s` is the Unix time at which the answer was read. If there is a `date` header, instants are by its clock.
    Headers that a body repeats (`metadata.headers`) should be included.
    """
    if not headers:
        return NO_READINGS
    lower = {name.lower(): value for name, value in headers.items()}
    parts: dict[str, _Parts] = {}
    unknown = []
    for name, value in lower.items():
        parsed = parse(name)
        if parsed is not None and parsed.role is not Role.IGNORED:
            parts.setdefault(parsed.budget, _Parts(parsed)).put(parsed, value)
        elif parsed is None and name not in RETRY and name != IETF and seems_about_limits(name):
            unknown.append(name[:80])
    clock_s = provider_now(lower.get("date", ""), wall_s)
    policy = next((lower[name] for name in POLICIES if name in lower), "")
    readings = [reading for part in parts.values() for reading in part.readings(clock_s, policy)]
    if IETF in lower:
        readings += ietf(lower[IETF], policy)
    retry = retry_after(headers.items(), wall_s)
    if not (readings or retry or unknown):
        return NO_READINGS
    retry_after_s, retry_grain_s = retry or (None, 0.0)
    return Readings(tuple(readings[:MOST_BUDGETS]), retry_after_s, retry_grain_s, tuple(unknown[:MOST_UNKNOWN]))


class _Parts:
    """The headers of one budget."""

    def __init__(self, name: Name) -> None:
        self._name = name
        self._texts: dict[Role, str] = {}

    def put(self, name: Name, text: str) -> None:
        self._texts.setdefault(name.role, text)

    def readings(self, clock_s: float, policy: str) -> Iterator[Reading]:
        """Yield one budget, or one for each window if the fields are lists of several.

        `600, 600;w=60` is one budget: the item with a window is a policy.
        """
        name, items_by_role = self._name, {role: _split_items(role, text) for role, text in self._texts.items()}
        remaining = items_by_role.get(Role.REMAINING, [])
        limits = items_by_role.get(Role.LIMIT, [])
        policies = [item for item in limits if period(item)] + (items(policy) if policy else [])
        plain = [item for item in limits if not period(item)] or limits
        for index, item in enumerate(remaining):
            if index and item == remaining[index - 1] and len(set(_texts(plain))) < 2:
                continue  # a proxy has repeated the header
            remaining_count = count(item.value)
            limit = _at(plain, index)
            most = None if limit is None else count(limit.value)
            if remaining_count is None or (limit is not None and (most is None or most <= 0.0)):
                continue
            window = self._period(policies, most, index if len(remaining) > 1 else None)
            budget = name.budget if index == 0 else f"{name.budget} {index + 1}"
            plainly = Reading(budget, name.unit, most or 0.0, remaining_count, window)
            yield _with_reset(plainly, _at(items_by_role.get(Role.RESET, []), index), clock_s)

    def _period(self, policies: list[ListItem], limit: float | None, index: int | None) -> float:
        period_text = self._texts.get(Role.PERIOD)
        if period_text is not None and (number(period_text) or 0.0) > 0.0:
            return number(period_text) or 0.0
        if self._name.period_s:
            return self._name.period_s
        if index is not None and index < len(policies):
            return period(policies[index])
        return next(
            (period(p) for p in policies if count(p.value) == limit or count(p.parameters.get("q", "")) == limit), 0.0
        )


def _split_items(role: Role, text: str) -> list[ListItem]:
    """Split a field into its items. A date contains commas, but is one item."""
    return [ListItem(text, {})] if role is Role.RESET and reset(text) is not None else items(text)


def _texts(entries: list[ListItem]) -> list[str]:
    return [item.value for item in entries]


def _at(entries: list[ListItem], index: int) -> ListItem | None:
    if not entries:
        return None
    return entries[index] if index < len(entries) else entries[-1]


def _with_reset(reading: Reading, entry: ListItem | None, clock_s: float) -> Reading:
    parsed = reset(entry.value) if entry is not None else None
    if parsed is None:
        return reading
    if parsed.instant:
        return reading._replace(reset_s=parsed.seconds - clock_s, grain_s=parsed.grain_s, from_answer=True)
    return reading._replace(reset_s=parsed.seconds, grain_s=parsed.grain_s, bare=parsed.bare)
