"""Fields with lists and parameters: the IETF drafts' `RateLimit` and `RateLimit-Policy`, and gateways' likes.

RateLimit: "burst";r=50;t=30, "daily";r=900;t=4000        RateLimit-Policy: "burst";q=100;w=60;qu="tokens"
RateLimit: limit=100, remaining=50, reset=5               RateLimit-Policy: 100;w=60
X-RateLimit-Limit: 600, 600;w=60;name="llm"               X-RateLimit-Limit: 1, 15000
"""

from __future__ import annotations

import re
from typing import NamedTuple

from dicast.workers.policy.headers.reading import BudgetUnit, Reading
from dicast.workers.policy.headers.values import LONGEST_TEXT, count, reset

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
    """Return the items of a list, at most `MOST_ITEMS`."""
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
