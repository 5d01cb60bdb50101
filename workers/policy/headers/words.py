"""The words of which the names of rate-limit headers are made.

    <family> - <role, unit, period and qualifiers in any order>

`x-ratelimit-remaining-tokens-minute`, `anthropic-ratelimit-input-tokens-remaining` and
`x-ratelimit-api_key-limit-requests` are all of this form. A word that is in no table is a qualifier: it only tells one
budget from another.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from dicast.workers.policy.headers.reading import BudgetUnit


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
