"""The ways in which providers and gateways report budgets in headers: one function each, by name in `DIALECTS`.

Names and forms are those of the providers' documentation and of answers that were seen; see docs/governor.md. Each
function is given the budgets' states, the Unix time, and whether the answer is a refusal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from dicast.app.providers.simulated.budgets import State
from dicast.app.providers.simulated.times import duration, instant

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
