"""draft"""

from __future__ import annotations

from workers.policy.adaptive import Adaptive, AdaptiveConfig
from workers.policy.events import Event, Sent, is_sane
from workers.policy.parameters import Parameters


class Governor:
    def __init__(self, floor: int, ceiling: int, config: AdaptiveConfig | None = None) -> None:
        self.config = config or AdaptiveConfig()
        self.floor, self.ceiling = floor, ceiling
        self.engine = Adaptive(self.config, Adaptive.first_state(self.config, floor, ceiling), floor, ceiling)
        self.version = 0
        self.garbage = 0

    def decide(self, events: list[Event], now: float) -> Parameters:
        e = self.engine
        for event in events:
            if not is_sane(event):
                self.garbage += 1
                continue
            e.advance(event.at)
            if isinstance(event, Sent):
                e.sent(event)
            else:
                e.done(event)
        e.advance(now)
        return self.parameters(now)

    def parameters(self, now: float) -> Parameters:
        e, s = self.engine, self.engine.state
        self.version += 1
        limit = max(self.floor, min(self.ceiling, int(e.limit)))
        before = int(s.growth.before) if s.growth.pending else limit
        return Parameters(
            version=self.version,
            decided_at=now,
            limit=limit,
            limit_if_refused=max(self.floor, min(limit, before)),
            counts_after=s.growth.cut_at,
            stop_after=6,
            feedback_s=s.feedback_s,
            hold_until=0.0 if s.judging_since is None else s.judging_since + s.feedback_s,
            solo_s=s.feedback_s if s.solo else 0.0,
            pace_s=e.pace_s,
            burst_s=e.burst_s,
            breaker=s.breaker.phase,
            breaker_until=s.breaker.until,
            break_number=s.breaker.number,
            buckets=tuple(e.buckets()),
            token_scale=s.token_scale,
        )

    def next_at(self, now: float) -> float | None:
        return self.engine.next_at(now)
