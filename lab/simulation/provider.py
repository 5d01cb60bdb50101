"""The simulated provider: caps, buckets, per-second quanta, queues, overload, outages, and what its headers tell."""

from __future__ import annotations

import bisect
import math
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime

from lab.simulation.chance import seeded
from lab.simulation.scenario import HeaderDialect, Scenario

EPOCH = 1_700_000_000.0
"""Unix time of the simulation's instant 0, for headers that tell instants."""
MAX_OUTPUT_TOKENS = 900.0
"""What every call asks for at most; providers charge it at admission."""
NETWORK_S = 0.05


@dataclass(slots=True, eq=False)
class SimUnit:
    """One piece of work: what its calls will cost, and how often it was tried."""

    project: int
    key: int
    input_tokens: float
    output_tokens: float
    estimate: float
    latency_s: float
    failures: int = 0
    refusals: int = 0
    charged: float = 0.0


@dataclass(frozen=True, slots=True)
class SimAnswer:
    """`after_s` None: queued, and served when a server frees."""

    status: int
    after_s: float | None
    headers: dict[str, str]


class SimBucket:
    """A budget that refills continuously, at the pace of the scenario's capacity."""

    def __init__(self, scenario: Scenario, per_min: float) -> None:
        self.scenario, self.per_min = scenario, per_min
        self.level, self._at = per_min / 60.0 * scenario.bucket_s * scenario.start_part, 0.0

    def told(self, now: float) -> tuple[float, float]:
        """The limit as it is told, and seconds until it is full."""
        scale = self.scenario.scale(now)
        limit = self.per_min * scale * max(1.0, self.scenario.bucket_s / 60.0)
        return limit, max(0.0, self.scenario.bucket_s - max(0.0, self.at(now)) * 60.0 / (self.per_min * scale))

    def wait_s(self, now: float, need: float) -> float:
        """Seconds until so much is there."""
        return (need - self.at(now)) * 60.0 / self.per_min

    def at(self, now: float) -> float:
        if now > self._at:
            scenario = self.scenario
            per_s = self.per_min / 60.0 * scenario.scale(now)
            refilled = self.level + per_s * scenario.ours(now) * (now - self._at)
            self.level, self._at = min(per_s * scenario.bucket_s, refilled), now
        return self.level


class SimWindow:
    """A budget that is full again at the end of each window, but for what a tenant then takes at once; as a log, each
    call comes back a window later."""

    def __init__(self, scenario: Scenario, per_min: float) -> None:
        self.scenario = scenario
        self.limit = round(per_min * scenario.window_s / 60.0)
        self.level, self._ends = float(self.limit), scenario.window_s - scenario.window_over_s
        self._before = self.level
        self._taken: deque[tuple[float, float]] = deque()

    def at(self, now: float) -> float:
        if self.scenario.log:
            if self.level != self._before:
                self._taken.append((now, self._before - self.level))
            while self._taken and self._taken[0][0] <= now - self.scenario.window_s:
                self.level += self._taken.popleft()[1]
            self._before = self.level
        elif now >= self._ends:
            self._ends += self.scenario.window_s * (1.0 + (now - self._ends) // self.scenario.window_s)
            self.level = self.limit * self.scenario.ours(self._ends - self.scenario.window_s)
        return self.level

    def told(self, now: float) -> tuple[float, float]:
        """The limit, and seconds until the window ends, or the oldest call leaves the log."""
        self.at(now)
        if self.scenario.log:
            return self.limit, self._taken[0][0] + self.scenario.window_s - now if self._taken else 0.0
        return self.limit, self._ends - now

    def wait_s(self, now: float, need: float) -> float:
        """Seconds until so much is there."""
        return self.told(now)[1]


class SimProvider:
    """Serves calls; `open` are the accepted ones. Deterministic for a seed."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario = scenario
        self._draw = seeded("provider", seed)
        self.open = 0
        self.en_route = 0
        self.en_route_tokens = 0.0
        counted = SimWindow if scenario.window_s else SimBucket
        self._requests = counted(scenario, scenario.requests_per_min) if scenario.requests_per_min else None
        self._tokens = SimBucket(scenario, scenario.tokens_per_min) if scenario.tokens_per_min else None
        self._second, self._in_second = -1, 0
        self._queue: deque[SimUnit] = deque()
        self._busy = 0
        self._accepted: deque[float] = deque()
        self._answered = 0

    def cap(self, now: float) -> int:
        scenario = self.scenario
        factor = scenario.scale(now) * scenario.ours(now)
        if scenario.cut_after is not None and self._answered >= scenario.cut_after[0]:
            factor *= scenario.cut_after[1]
        return math.floor(scenario.cap * factor + 1e-9)

    def arrive(self, now: float, unit: SimUnit) -> SimAnswer:
        """A call comes in."""
        refused_after = self._draw.uniform(*self.scenario.refusal_latency_s)
        if self.scenario.is_down(now):
            return SimAnswer(503, self._draw.uniform(0.5, 1.5), {})
        if self._is_overloaded(now):
            return SimAnswer(529, refused_after, {})
        wait = self._refused_for(now)
        if wait is None:
            wait = self._lacking(now, unit)
        if wait is not None:
            return SimAnswer(429, refused_after, self._headers(now, retry_after_s=wait))
        if self._draw.random() < self.scenario.error_share:
            self.open += 1
            return SimAnswer(500, min(unit.latency_s, 2.0) * self.scenario.slowness(now), {})
        return self._serve(now, unit, refused_after)

    def _serve(self, now: float, unit: SimUnit, refused_after: float) -> SimAnswer:
        scenario, headers = self.scenario, self._headers(now, is_good=True)
        latency = unit.latency_s * scenario.slowness(now)
        if scenario.servers and len(self._queue) >= scenario.queue * scenario.servers:
            return SimAnswer(429, refused_after, headers)
        if scenario.cap:
            latency *= 1.0 + scenario.crowding * min(1.0, self.open / max(1, self.cap(now))) ** 4
        self.open += 1
        if scenario.knee:
            latency *= max(1.0, self.open / scenario.knee)
            latency *= 2.0 if scenario.thrash and self.open > scenario.thrash else 1.0
        if scenario.servers and self._busy >= scenario.servers * scenario.scale(now):
            self._queue.append(unit)
            return SimAnswer(200, None, headers)
        self._busy += 1
        return SimAnswer(200, latency, headers)

    def _is_overloaded(self, now: float) -> bool:
        overload = self.scenario.overload(now)
        if overload is None:
            return False
        crowded = self.scenario.cap > 0 and self.open >= math.floor(self.cap(now) * overload.capacity)
        return crowded or self._draw.random() < overload.random_share

    def _refused_for(self, now: float) -> float | None:
        """Seconds to wait if something else than a budget refuses the call."""
        scenario = self.scenario
        if scenario.noise_share and self._draw.random() < scenario.noise_share:
            return 1.0
        if scenario.cap and self.open >= self.cap(now):
            return 1.0
        return 2.0 if scenario.accelerates and self._too_fast(now) else None

    def _lacking(self, now: float, unit: SimUnit) -> float | None:
        """Seconds until the budgets admit the call, or None: they do, and it is charged."""
        scenario = self.scenario
        if self._requests is not None:
            if scenario.per_second and self._second_is_full(now, 0):
                return 1.0
            level = self._requests.at(now)
            if level < 1.0 and scenario.enforced:
                lowest = -scenario.requests_per_min / 6.0
                self._requests.level = max(lowest, level - scenario.refusal_cost)
                return self._requests.wait_s(now, 1.0)
        if self._tokens is not None:
            unit.charged = unit.input_tokens + MAX_OUTPUT_TOKENS
            level = self._tokens.at(now)
            if level < unit.charged:
                return (unit.charged - level) * 60.0 / scenario.tokens_per_min
            self._tokens.level -= unit.charged
        if self._requests is not None:
            self._requests.level = self._requests.level - 1.0 if scenario.enforced else max(0.0, level - 1.0)
            self._in_second += 1
        if scenario.accelerates:
            self._accepted.append(now)
        return None

    def leave(self, now: float, unit: SimUnit, status: int) -> SimUnit | None:
        """A call was answered; returns the queued unit whose service starts now."""
        if status not in (200, 500):
            return None
        self.open -= 1
        self._answered += status == 200
        if self._tokens is not None:
            used = unit.input_tokens + (unit.output_tokens if status == 200 else 0.0)
            self._tokens.at(now)
            self._tokens.level += unit.charged - used
        if not self.scenario.servers or status != 200:
            return None
        if self._queue and self._busy <= self.scenario.servers * self.scenario.scale(now):
            return self._queue.popleft()
        self._busy -= 1
        return None

    def would_accept(self, now: float, unit: SimUnit) -> bool:
        """Whether a call sent now would be accepted; only the oracle may ask."""
        now, scenario = now + NETWORK_S, self.scenario
        if scenario.is_down(now) or (scenario.accelerates and self._too_fast(now, self.en_route)):
            return False
        overload = scenario.overload(now)
        left = 1.0 if overload is None else overload.capacity
        coming = self.open + self.en_route
        if scenario.cap and coming >= math.floor(self.cap(now) * left):
            return False
        if scenario.knee and coming >= scenario.knee:
            return False
        if scenario.servers and coming >= math.floor(scenario.servers * scenario.scale(now) * left):
            return False
        if self._requests is not None:
            full = self._second_is_full(now, self.en_route) if scenario.per_second else False
            if full or (scenario.enforced and self._requests.at(now) < self.en_route + 1):
                return False
        needed = self.en_route_tokens + unit.input_tokens + MAX_OUTPUT_TOKENS
        return self._tokens is None or self._tokens.at(now) >= needed

    def _second_is_full(self, now: float, coming: int) -> bool:
        scenario = self.scenario
        if int(now) != self._second:
            self._second, self._in_second = int(now), 0
        most = math.floor(scenario.requests_per_min / 60.0 * scenario.scale(now) * scenario.ours(now) + 1e-9)
        return self._in_second + coming >= max(1, most)

    def _too_fast(self, now: float, coming: int = 0) -> bool:
        accepted = self._accepted
        while accepted and accepted[0] <= now - 20.0:
            accepted.popleft()
        before = bisect.bisect_right(accepted, now - 10.0)
        return len(accepted) - before + coming >= self.scenario.accelerates * before + 15

    def _headers(self, now: float, retry_after_s: float | None = None, *, is_good: bool = False) -> dict[str, str]:
        scenario = self.scenario
        headers: dict[str, str] = {}
        if retry_after_s is not None and scenario.retry_after:
            headers["retry-after"] = str(max(1, math.ceil(retry_after_s)))
        if scenario.dialect is HeaderDialect.SILENT or not scenario.is_told(now):
            return headers
        if scenario.told_share < 1.0 and (not is_good or self._draw.random() >= scenario.told_share):
            return headers
        for unit, bucket in (("requests", self._requests), ("tokens", self._tokens)):
            if bucket is None and unit == "tokens":
                continue
            limit, full_in_s = (1e6 * scenario.scale(now), 0.0) if bucket is None else bucket.told(now)
            left = limit if bucket is None else max(0.0, bucket.at(now))
            headers |= told(scenario.dialect, unit, limit, left, full_in_s, now, scenario.window_s or 60.0)
        return headers


def told(
    dialect: HeaderDialect, unit: str, limit: float, left: float, reset_s: float, now: float, window_s: float
) -> dict[str, str]:
    """One budget as a dialect writes it."""
    most, shown = f"{limit:.0f}", f"{int(left)}"
    match dialect:
        case HeaderDialect.OPENAI:
            values = {"limit": most, "remaining": shown, "reset": duration(reset_s)}
            return {f"x-ratelimit-{role}-{unit}": value for role, value in values.items()}
        case HeaderDialect.ANTHROPIC:
            shown = f"{round(left, -3):.0f}" if unit == "tokens" else shown
            values = {"limit": most, "remaining": shown, "reset": instant(now + reset_s)}
            return {f"anthropic-ratelimit-{unit}-{role}": value for role, value in values.items()}
        case HeaderDialect.IETF:
            return {"ratelimit": f'"{unit}";r={shown};t={math.ceil(reset_s)}',
                    "ratelimit-policy": f'"{unit}";q={most};w={window_s:.0f}'}  # fmt: skip
        case HeaderDialect.UNIX_MS:
            at_ms = f"{1000.0 * (EPOCH + now + reset_s):.0f}"
            return {"x-ratelimit-limit": most, "x-ratelimit-remaining": shown, "x-ratelimit-reset": at_ms}
        case _:
            return {f"x-ratelimit-limit-{unit}": most, f"x-ratelimit-remaining-{unit}": shown}


def duration(seconds: float) -> str:
    """As OpenAI writes it: 120ms, 1.5s, 6m0s."""
    if seconds < 1.0:
        return f"{round(seconds * 1000)}ms"
    if seconds < 60.0:
        return f"{seconds:.3f}s"
    return f"{int(seconds // 60)}m{seconds % 60:.0f}s"


def instant(now: float) -> str:
    """As Anthropic writes it: RFC 3339 in whole seconds."""
    return datetime.fromtimestamp(EPOCH + now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
