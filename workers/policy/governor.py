"""The governor of one pool: events in, parameters out.

`decide` is a pure function of the state and its arguments: no clock, no chance, no I/O. A beat task loads the state,
feeds it what the enforcer reported since, in that order, and commits state and parameters by compare-and-set; where
two decide at once, one of them is simply lost. The state is bounded, and survives a change of leader as JSON.

The clamps come last, whatever an engine says: the ceiling and the SLO caps, the operator's and the one that follows an
error budget, are hard, the floor holds unless they are lower.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated

from pydantic import Discriminator, TypeAdapter

from dicast.workers.policy import error_budget
from dicast.workers.policy.adaptive import Adaptive
from dicast.workers.policy.adaptive_state import AdaptiveConfig, AdaptiveState
from dicast.workers.policy.breaker import Breaker
from dicast.workers.policy.calls import Done, Event, Sent, is_sane
from dicast.workers.policy.classic import Classic, ClassicConfig, ClassicState
from dicast.workers.policy.engines import Directives, Engine, Fixed, FixedState
from dicast.workers.policy.error_budget import BudgetUse
from dicast.workers.policy.headers import BudgetUnit
from dicast.workers.policy.parameters import Parameters, configured_bucket
from dicast.workers.policy.profiles import PoolConfig
from dicast.workers.policy.rules import LimitCause, Rules, RulesConfig, RulesState

MOST_CHANGES = 50
SLO = "slo"
BUDGET = "slo: error budget"
CEILING = "ceiling"
FUTURE_S = 5.0
"""An event dated further ahead of the decision than this is ignored."""
PAUSE_MAX_S = 60.0
"""The longest pause that one answer can ask for: a gateway that sends the same with each answer must not stop the
pool."""

EngineState = Annotated[AdaptiveState | ClassicState | RulesState | FixedState, Discriminator("kind")]


class ChangeCause(StrEnum):
    """What changed a limit, as far as others than people need to know: `ENGINE` is every reason of an engine that is
    not listed. `RECOVERED` is the first change after the circuit breaker has closed, whatever its reason."""

    ENGINE = "engine"
    RECOVERED = "recovered"
    CPU = "cpu"
    OPERATOR = "operator"
    SLO = SLO
    ERROR_BUDGET = "error_budget"
    CEILING = CEILING


_CLAMPS = {SLO: ChangeCause.SLO, BUDGET: ChangeCause.ERROR_BUDGET, CEILING: ChangeCause.CEILING}


@dataclass(frozen=True, slots=True)
class LimitChange:
    """One line of the pool's history: a change of the limit or, if `before` equals `after`, a finding. `reason` puts
    `cause` into words."""

    at: float
    before: int
    after: int
    reason: str
    cause: ChangeCause = ChangeCause.ENGINE


@dataclass(slots=True)
class GovernorState:
    """Everything that is remembered of one pool.

    `clamp` names what bounds the limit instead of the engine ('' if nothing does). `garbage` counts implausible events.
    Until `pause_until` no call begins, because an answer asked for a pause. `broken` is True from when the circuit
    breaker opens to the first change of the limit after it has closed.
    """

    engine: EngineState
    version: int = 0
    now: float = 0.0
    limit: int = 0
    slo: int | None = None
    clamp: str = ""
    garbage: int = 0
    pause_until: float = 0.0
    broken: bool = False
    budget_use: BudgetUse = field(default_factory=BudgetUse)
    history: deque[LimitChange] = field(default_factory=lambda: deque(maxlen=MOST_CHANGES))

    def to_json(self) -> bytes:
        return _CODEC.dump_json(self)

    @classmethod
    def from_json(cls, raw: bytes | str) -> GovernorState:
        """Parse a state. Raises `pydantic.ValidationError` if `raw` is none."""
        state = _CODEC.validate_json(raw)
        state.history = deque(state.history, maxlen=MOST_CHANGES)
        return state


class PoolGovernor:
    """Decides for one pool, by the engine that its configuration names."""

    def __init__(self, config: PoolConfig, state: GovernorState | None = None) -> None:
        """Take up `state`, or begin anew. Of a state that another engine left only the limit is used, clamped."""
        self.config = config
        self._engine = _engine(config, state)
        self.state = state or GovernorState(self._engine.state, limit=config.first_limit)
        self.state.engine = self._engine.state

    def decide(self, events: Iterable[Event], now: float) -> Parameters:
        """Take in the events in their order, let time pass up to `now`, and say what is in force from then on.

        Implausible events are counted and ignored; time never runs backwards.
        """
        state = self.state
        for event in events:
            if not is_sane(event) or event.at > now + FUTURE_S:
                state.garbage += 1
                continue
            self._advance(event.at)
            if isinstance(event, Sent):
                self._engine.sent(event)
            else:
                self._engine.done(event)
                self._heed(event)
                if self.config.error_budget is not None:
                    error_budget.record(self.config.error_budget, state.budget_use, event)
        self._advance(now)
        return self._parameters()

    def _heed(self, event: Done) -> None:
        """Pause the pool if an answer asks for it.

        Such an answer is not a refusal and moves no limit, but says that the next call would be refused. What a refusal
        asks for delays its unit, and never the pool.
        """
        wait_s = event.readings.retry_after_s
        if event.ok and wait_s and not isinstance(self._engine, Fixed):
            self.state.pause_until = max(self.state.pause_until, event.at + min(wait_s, PAUSE_MAX_S))

    def next_at(self) -> float | None:
        """Return when time alone will change the decision; None: not before an event."""
        instants = [self._engine.next_at()]
        if self.config.error_budget is not None:
            instants.append(error_budget.next_at(self.config.error_budget, self.state.budget_use))
        return min((instant for instant in instants if instant is not None), default=None)

    def set_slo_constraint(self, most: int | None) -> None:
        """Cap the limit from the next decision on, below the floor too; None lifts the cap."""
        if most is not None and most < 1:
            raise ValueError(f"SLO constraint must be >= 1, got {most}")
        self.state.slo = most

    def set_cpu(self, percent: float) -> None:
        """Set the node's CPU load, in percent of one core, for the rules engine; other engines ignore it."""
        if isinstance(self._engine, Rules):
            self._engine.set_cpu(percent)

    @property
    def breaker(self) -> Breaker:
        return self._engine.breaker

    @property
    def reason(self) -> str:
        """Why the limit is what it is."""
        return str(self._engine.state.reason)

    def _advance(self, now: float) -> None:
        self.state.now = max(self.state.now, now)
        self._engine.advance(self.state.now)
        self.state.engine = self._engine.state
        self._spend_budget()
        limit, before = self._clamp(self._engine.limit), self.state.clamp
        self.state.clamp = self._clamp_on(self._engine.limit)
        self.state.broken = self.state.broken or not self._engine.breaker.closed
        if limit != self.state.limit:
            lifted = f"{before} lifted" if before and limit > self.state.limit else self.reason
            reason, cause = self.state.clamp or lifted, self._cause()
            self.state.history.append(LimitChange(self.state.now, self.state.limit, limit, reason, cause))
            self.state.limit = limit
            self.state.broken = not self._engine.breaker.closed
        if isinstance(self._engine, Adaptive):
            for news in self._engine.take_news():
                self.state.history.append(LimitChange(self.state.now, limit, limit, news))

    def _cause(self) -> ChangeCause:
        """Return the cause of a change of the limit that is made now."""
        if self.state.broken and self._engine.breaker.closed:
            return ChangeCause.RECOVERED
        if self.state.clamp:
            return _CLAMPS[self.state.clamp]
        by_cpu = isinstance(self._engine, Rules) and self._engine.state.cause is LimitCause.CPU_HIGH
        return ChangeCause.CPU if by_cpu else ChangeCause.ENGINE

    def _spend_budget(self) -> None:
        """Update the cap that follows the error budget, if there is one."""
        budget, state = self.config.error_budget, self.state
        if budget is None:
            state.budget_use.cap = None
            return
        error_budget.step(budget, state.budget_use, state.now, state.limit, self.config.ceiling)

    def _clamp(self, limit: float) -> int:
        config = self.config
        whole = min(max(int(limit), config.floor), config.ceiling)
        caps = [cap for cap in (self.state.slo, self.state.budget_use.cap) if cap is not None]
        return max(1, min([whole, *caps]))

    def _clamp_on(self, limit: float) -> str:
        """Return the name of the clamp that lowers the engine's limit; '' if none does."""
        slo, cap = self.state.slo, self.state.budget_use.cap
        most = min(int(limit), self.config.ceiling)
        if cap is not None and cap < most and (slo is None or cap < slo):
            return BUDGET
        if slo is not None and slo < most:
            return SLO
        return CEILING if int(limit) > self.config.ceiling else ""

    def _parameters(self) -> Parameters:
        state, config = self.state, self.config
        state.version += 1
        say: Directives = self._engine.directives()
        breaker = self._engine.breaker
        budgets = [
            configured_bucket(unit, per_min)
            for unit, per_min in (
                (BudgetUnit.REQUESTS, config.requests_per_min),
                (BudgetUnit.TOKENS, config.tokens_per_min),
            )
            if per_min is not None
        ]
        return Parameters(
            version=state.version,
            decided_at=state.now,
            limit=state.limit,
            limit_if_refused=min(state.limit, self._clamp(say.limit_if_refused)),
            counts_after=say.counts_after,
            stop_after=say.stop_after,
            feedback_s=say.feedback_s,
            hold_until=max(say.hold_until, state.pause_until),
            single_call_s=say.single_call_s,
            pace_s=say.pace_s,
            burst_s=say.burst_s,
            pace_jitter=say.pace_jitter,
            breaker=breaker.phase,
            breaker_until=breaker.until,
            break_number=breaker.number,
            probe_s=config.probe_s,
            buckets=(*budgets, *say.buckets),
            token_scale=say.token_scale,
            stale_after_s=config.stale_after_s,
            stale_limit=config.stale_limit or config.floor,
            fair=config.fair,
            weights=dict(config.weights),
            project_max=dict(config.project_max),
        )


_CODEC: TypeAdapter[GovernorState] = TypeAdapter(GovernorState)


def _engine(config: PoolConfig, state: GovernorState | None) -> Engine:
    """Return the configured engine, with the state in `state` if it is its own."""
    was = state.engine if state is not None else None
    limit = max(config.floor, min(config.ceiling, state.limit)) if state is not None else config.first_limit
    constants = config.engine
    if isinstance(constants, AdaptiveConfig | ClassicConfig):
        constants = replace(constants, breaker=replace(constants.breaker, probe_s=config.probe_s))
    if isinstance(constants, AdaptiveConfig):
        if isinstance(was, AdaptiveState) and not was.log.sent_total:
            was, limit = None, config.first_limit  # a pool's ceiling is known when its first job is there
        adaptive = was if isinstance(was, AdaptiveState) else AdaptiveState.starting_at(constants, limit)
        adaptive.ceiling_is(config.ceiling, config.first_limit)
        return Adaptive(constants, adaptive, config.floor, config.ceiling)
    if isinstance(constants, ClassicConfig):
        classic = was if isinstance(was, ClassicState) else ClassicState(limit)
        return Classic(constants, classic, config.floor, config.ceiling)
    if isinstance(constants, RulesConfig):
        configured = config.limit or config.ceiling
        if isinstance(was, RulesState):
            was.configure(configured)
        return Rules(constants, was if isinstance(was, RulesState) else RulesState(configured, limit))
    if isinstance(was, FixedState) and not was.asked:
        return Fixed(was)
    if isinstance(was, FixedState) or was is None:
        return Fixed(FixedState(config.first_limit if config.limit is not None else limit))
    return Fixed(FixedState(limit, asked=False))
