"""Budgets of every kind that providers and gateways enforce, or only report, and the headers that report them.

A *bucket* refills all the time; a *window* forgets everything at its end, on the clock; a *log* forgets each request
one period after it was made. Pure: `now` is seconds on any steady clock; when it was 0, the wall clock said `unix_s`.

`DIALECTS` has the ways in which they are reported, one function each, by name. Names and forms are those of the
providers' documentation and of answers that were seen; see docs/governor.md. Each function is given the budgets'
states, the Unix time, and whether the answer is a refusal.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

KINDS, UNITS = ("bucket", "window", "log"), ("requests", "tokens")
_SPEC = re.compile(rf"({'|'.join(KINDS)}):(\d+)/(\d+(?:\.\d+)?)(?::({'|'.join(UNITS)}))?(:shown)?", re.ASCII)
_ROUNDING = 1e-9


class ReportedBudget(NamedTuple):
    """`limit` requests or tokens in `period_s`; one that is not `enforced` is only reported."""

    kind: str
    limit: int
    period_s: float
    unit: str = "requests"
    enforced: bool = True


class State(NamedTuple):
    """A budget as headers report it. `reset_s`: until a bucket is full, a window ends, or a log's oldest entry
    leaves."""

    budget: ReportedBudget
    remaining: int
    reset_s: float


def parse_budgets(text: str) -> tuple[ReportedBudget, ...]:
    """Parse budgets, joined by `+`. `window:4800/60` is 4,800 requests in each minute of the clock;
    `bucket:100000/60:tokens:shown` is a bucket of tokens that is reported and not enforced. Raises ValueError."""
    budgets = []
    for part in text.split("+"):
        match = _SPEC.fullmatch(part)
        if not match or not int(match[2]) or not float(match[3]):
            raise ValueError(f"a budget looks like window:4800/60 or bucket:100000/60:tokens:shown, got {part!r}")
        budgets.append(ReportedBudget(match[1], int(match[2]), float(match[3]), match[4] or UNITS[0], not match[5]))
    return tuple(budgets)


class Account:
    """What has been spent of one budget."""

    def __init__(self, budget: ReportedBudget, now: float, unix_s: float) -> None:
        self.budget, self._unix_s = budget, unix_s
        self._used, self._at, self._window = 0.0, now, self._window_of(now)
        self._entries: deque[tuple[float, float]] = deque()

    def wait_s(self, amount: float, now: float) -> float:
        """Return 0 if `amount` may be spent now, else the time until it may. An amount above the limit waits until all
        of the budget is there."""
        self._advance(now)
        short = min(amount, self.budget.limit) - (self.budget.limit - self._used)
        if not self.budget.enforced or short <= _ROUNDING:
            return 0.0
        if self.budget.kind == "bucket":
            return short * self.budget.period_s / self.budget.limit
        return max(0.001, self._reset_s(now))

    def take(self, amount: float, now: float) -> None:
        self._advance(now)
        self._used += amount
        if self.budget.kind == "log":
            self._entries.append((now, amount))

    def state(self, now: float) -> State:
        self._advance(now)
        return State(self.budget, max(0, math.floor(self.budget.limit - self._used + _ROUNDING)), self._reset_s(now))

    def _reset_s(self, now: float) -> float:
        period_s = self.budget.period_s
        if self.budget.kind == "bucket":
            return max(0.0, self._used) * period_s / self.budget.limit
        if self.budget.kind == "window":
            return (self._window + 1) * period_s - (self._unix_s + now)
        return self._entries[0][0] + period_s - now if self._entries else 0.0

    def _window_of(self, now: float) -> int:
        return math.floor((self._unix_s + now) / self.budget.period_s)

    def _advance(self, now: float) -> None:
        if self.budget.kind == "bucket":
            refilled = max(0.0, now - self._at) * self.budget.limit / self.budget.period_s
            self._used, self._at = max(0.0, self._used - refilled), max(now, self._at)
        elif self.budget.kind == "window":
            if (window := self._window_of(now)) > self._window:
                self._window, self._used = window, 0.0
        else:
            while self._entries and self._entries[0][0] <= now - self.budget.period_s:
                self._used -= self._entries.popleft()[1]


def amount_of(budget: ReportedBudget, tokens: int) -> int:
    """Return what one request of `tokens` takes from the budget."""
    return 1 if budget.unit == UNITS[0] else tokens


def longest_wait(accounts: Sequence[Account], tokens: int, now: float) -> tuple[float, str]:
    """Return how long a request has to wait for all budgets, and the unit of the last one; (0, "") if it need not."""
    waits = [(account.wait_s(amount_of(account.budget, tokens), now), account.budget.unit) for account in accounts]
    return max(waits, default=(0.0, "")) if any(wait for wait, _ in waits) else (0.0, "")


def duration(seconds: float) -> str:
    """A Go duration, as OpenAI writes resets: `0s`, `120ms`, `1.5s`, `6m0s`, `1h2m3s`. Rounded up to whole ms."""
    ms = math.ceil(round(max(0.0, seconds) * 1000, 6))
    if ms == 0:
        return "0s"
    if ms < 1000:
        return f"{ms}ms"
    minutes, rest_ms = divmod(ms, 60_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{rest_ms / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text


def instant(unix_s: float) -> str:
    """An RFC 3339 instant, as Anthropic writes resets: `2026-01-27T12:00:30Z`. Rounded up to whole seconds."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=math.ceil(unix_s))).strftime("%Y-%m-%dT%H:%M:%SZ")


Headers = dict[str, str]
Writer = Callable[[Sequence[State], float, bool], Headers]

_PERIODS = {1.0: "second", 60.0: "minute", 3600.0: "hour", 86_400.0: "day"}


def _period(state: State) -> str:
    return _PERIODS.get(state.budget.period_s, "minute")


def _three(states: Sequence[State], form: str, reset: Callable[[State], str | None]) -> Headers:
    """Return limit, remaining and reset of each budget; `form` is the pattern of the header names."""
    headers: Headers = {}
    for state in states:
        values = {"limit": str(state.budget.limit), "remaining": str(state.remaining), "reset": reset(state)}
        for what, value in values.items():
            if value is not None:
                headers[form.format(what=what, unit=state.budget.unit, period=_period(state))] = value
    return headers


def _openai(states: Sequence[State], unix_s: float, rejected: bool) -> Headers:
    return _three(states, "x-ratelimit-{what}-{unit}", lambda state: duration(state.reset_s))


def _no_reset(states: Sequence[State], unix_s: float, rejected: bool) -> Headers:
    return _three(states, "x-ratelimit-{what}-{unit}", lambda _: None)


def _azure(states: Sequence[State], unix_s: float, rejected: bool) -> Headers:
    headers = _three(states, "x-ratelimit-{what}-{unit}", lambda state: str(math.ceil(state.reset_s)))
    periods = {f"x-ratelimit-renewalperiod-{s.budget.unit}": f"{s.budget.period_s:g}" for s in states}
    return headers | periods


def _azure_ms(states: Sequence[State], unix_s: float, rejected: bool) -> Headers:
    return _three(states, "x-ratelimit-{what}-{unit}", lambda state: str(math.ceil(1000 * state.reset_s)))


def _anthropic(states: Sequence[State], unix_s: float, rejected: bool) -> Headers:
    return _three(states, "anthropic-ratelimit-{unit}-{what}", lambda state: instant(unix_s + state.reset_s))


def _mistral(states: Sequence[State], unix_s: float, rejected: bool) -> Headers:
    headers = _three(states, "x-ratelimit-{what}-{unit}-{period}", lambda _: None)
    return {name.replace("-requests-", "-req-"): value for name, value in headers.items()}


def _cerebras(states: Sequence[State], unix_s: float, rejected: bool) -> Headers:
    if rejected:
        return {}
    return _three(states, "x-ratelimit-{what}-{unit}-{period}", lambda state: f"{state.reset_s:.6f}")


def _together(states: Sequence[State], unix_s: float, rejected: bool) -> Headers:
    headers: Headers = {}
    for state in states:
        form = "x-ratelimit-{what}" if state.budget.unit == "requests" else "x-tokenlimit-{what}"
        headers |= _three([state], form, lambda budget: f"{budget.reset_s:.3f}")
    return headers


def _openrouter(states: Sequence[State], unix_s: float, rejected: bool) -> Headers:
    if not rejected:
        return {}
    return _three(states[:1], "X-RateLimit-{what}", lambda state: str(math.ceil(1000 * (unix_s + state.reset_s))))


def _litellm(states: Sequence[State], unix_s: float, rejected: bool) -> Headers:
    return _three(states, "x-ratelimit-api_key-{what}-{unit}", lambda _: None)


def _digitalocean(states: Sequence[State], unix_s: float, rejected: bool) -> Headers:
    form = "x-ratelimit-{what}-{unit}-per-{period}"
    return _three(states, form, lambda state: str(math.ceil(unix_s + state.reset_s)))


def _envoy(states: Sequence[State], unix_s: float, rejected: bool) -> Headers:
    if not states:
        return {}
    tightest = min(states, key=lambda state: state.remaining)
    policies = ", ".join(f'{s.budget.limit};w={s.budget.period_s:.0f};name="{s.budget.unit}"' for s in states)
    return {
        "x-ratelimit-limit": f"{tightest.budget.limit}, {policies}",
        "x-ratelimit-remaining": str(tightest.remaining),
        "x-ratelimit-reset": str(math.ceil(tightest.reset_s)),
    }


def _kong(states: Sequence[State], unix_s: float, rejected: bool) -> Headers:
    headers = _three(states, "X-RateLimit-{what}-{period}", lambda _: None)
    return _ietf_three(states, unix_s, rejected) | {name.title(): value for name, value in headers.items()}


def _ietf_three(states: Sequence[State], unix_s: float, rejected: bool) -> Headers:
    return _three(states[:1], "RateLimit-{what}", lambda state: str(math.ceil(state.reset_s)))


def _ietf(states: Sequence[State], unix_s: float, rejected: bool) -> Headers:
    def format_all(format_state: Callable[[State], str]) -> str:
        return ", ".join(f'"{state.budget.unit}-{_period(state)}";{format_state(state)}' for state in states)

    return {
        "RateLimit-Policy": format_all(lambda s: f"q={s.budget.limit};w={s.budget.period_s:.0f}"),
        "RateLimit": format_all(lambda s: f"r={s.remaining};t={math.ceil(s.reset_s)}"),
    }


def _silent(states: Sequence[State], unix_s: float, rejected: bool) -> Headers:
    return {}


DIALECTS: Mapping[str, Writer] = {
    "openai": _openai,
    "openai-no-reset": _no_reset,
    "azure": _azure,
    "azure-ms": _azure_ms,
    "anthropic": _anthropic,
    "mistral": _mistral,
    "cerebras": _cerebras,
    "together": _together,
    "openrouter": _openrouter,
    "litellm": _litellm,
    "digitalocean": _digitalocean,
    "envoy": _envoy,
    "kong": _kong,
    "ietf": _ietf,
    "ietf3": _ietf_three,
    "silent": _silent,
}
