"""Reads an answer's headers into `Readings`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dicast.workers.policy.headers.reading import NO_READINGS, Reading, Readings
from dicast.workers.policy.headers.retry import retry_after
from dicast.workers.policy.headers.structured import ListItem, ietf, items, period
from dicast.workers.policy.headers.values import count, number, provider_now, reset
from dicast.workers.policy.headers.words import Name, Role, parse, seems_about_limits

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
    retry = retry_after(lower, wall_s)
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
