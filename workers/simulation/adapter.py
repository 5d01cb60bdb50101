"""draft"""

from __future__ import annotations

from typing import Any

from workers.policy.admission import Denied, EnforcementState, Outcome, Request, grant, release
from workers.policy.events import Cost, Event
from workers.policy.fairness import in_turn
from workers.policy.governor import Governor
from workers.policy.headers import read_limits

EPOCH = 1_700_000_000.0


class Adapter:
    def __init__(self, pub: Any, seed: int) -> None:
        self.governor = Governor(1, pub.ceiling)
        self.state = EnforcementState()
        self.params = self.governor.decide([], 0.0)
        self.number = 0
        self.by_time: dict[tuple[float, int], list[str]] = {}
        self.pending: dict[Any, str] = {}
        self.open: dict[float, list[str]] = {}

    @property
    def limit(self) -> float:
        return self.governor.engine.limit

    @property
    def probe_fresh(self) -> bool:
        return self.params.breaker != "closed"

    def _decide(self, events: list[Event], now: float) -> None:
        self.params = self.governor.decide(events, now)

    def pick(self, now: float, projects: Any) -> Any:
        names = {str(p): p for p in projects}
        found = in_turn(names, self.state.projects, {}, limit=self.params.limit, mode=self.params.fair)
        return None if found is None else names[found]

    def on_admit_request(self, now: float, est_tokens: float, *, project: Any = 0, **_: Any) -> bool | float:
        at = self.governor.next_at(now)
        if at is not None and now >= at - 1e-9:
            self._decide([], now)
        self.number += 1
        call = str(self.number)
        answer = grant(self.params, self.state, Request(call, str(project), "", est_tokens, lease_s=1e6), now)
        if isinstance(answer, Denied):
            waits = [answer.retry_after_ms / 1000.0] if answer.retry_after_ms is not None else []
            at = self.governor.next_at(now)
            if at is not None:
                waits.append(max(0.001, at - now))
            return min(waits) if waits else False
        self._decide([answer.sent], now)
        self.open.setdefault(round(now, 6), []).append(call)
        return True

    def on_response(self, now: float, status: int, latency: float, headers: dict[str, str], tokens: Any, *, project: Any = 0, key: Any = None, **_: Any) -> None:
        sent = round(now - latency, 6)
        calls = self.open[sent]
        call = next(c for c in calls if self.state.leases[c].project == str(project))
        calls.remove(call)
        if not calls:
            del self.open[sent]
        readings = read_limits(headers, EPOCH + now - latency) if headers else ()
        outcome = Outcome(status, Cost(1.0, tokens[1]), readings, str(key))
        done = release(self.params, self.state, call, outcome, now)
        assert done is not None
        self._decide([done], now)

    def on_tick(self, now: float) -> None:
        self._decide([], now)
