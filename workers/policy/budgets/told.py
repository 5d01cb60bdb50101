"""All that the provider reports about its limits, for one pool, and what follows from it for the engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from dicast.workers.policy.buckets import amount
from dicast.workers.policy.budgets import doubt
from dicast.workers.policy.budgets.budget import FEW, Budget
from dicast.workers.policy.budgets.hidden import HiddenWindow
from dicast.workers.policy.calls import NEVER, CallLog, LoggedCall
from dicast.workers.policy.events import Done
from dicast.workers.policy.headers import BudgetUnit, Reading
from dicast.workers.policy.parameters import Bucket

SCALE_WEIGHT = 0.02
SCALE_MOST = 4.0
COST_WEIGHT = 0.05
MOST_BUDGETS = 32
MOST_UNKNOWN, MOST_NOTES = 8, 12


@dataclass(slots=True)
class ReportedBudgets:
    """The reported budgets of one pool. `token_scale` is the ratio of used to estimated tokens.

    `room_at` is when a call was last refused although every reported budget had room for it: then something is bounded
    that the headers do not show, usually the same rate counted per second. `room_per_s` is that rate. `unknown` are
    names of headers that could not be read. `notes` are the findings, latest last; `news` are those not yet handed
    over.
    """

    known: dict[str, Budget] = field(default_factory=dict)
    hidden: HiddenWindow = field(default_factory=HiddenWindow)
    token_scale: float = 1.0
    tokens_per_call: float = 0.0
    room_at: float = NEVER
    room_per_s: float = 0.0
    unknown: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    news: list[str] = field(default_factory=list)

    def observe(self, event: Done, trial: LoggedCall) -> bool:
        """Take in an outcome's readings and tokens; returns whether there were readings, all with room for the call."""
        self.hidden.note(trial, event.was_refused, event.model, event.spent.requests)
        used = event.used.input_tokens + event.used.output_tokens
        if event.ok and used > 0 and event.estimated_tokens > 0:
            scale = min(SCALE_MOST, used / event.estimated_tokens)
            self.token_scale += SCALE_WEIGHT * (scale - self.token_scale)
        if used > 0:
            weight = COST_WEIGHT if self.tokens_per_call else 1.0
            self.tokens_per_call += weight * (used - self.tokens_per_call)
        for name in event.readings.unknown:
            if name not in self.unknown:
                self.unknown = [*self.unknown, name][-MOST_UNKNOWN:]
        readings = event.readings.budgets
        for reading in readings:
            cost = (
                1.0 if reading.unit is BudgetUnit.REQUESTS else max(1.0, self.tokens_per_call or event.estimated_tokens)
            )
            budget = self._budget(reading, event.model)
            budget.observe(reading, trial, event.at, amount(reading.unit, event.spent), cost)
            budget.refused += event.was_refused
        return bool(readings) and all(self._has_room(reading, event) for reading in readings)

    def _budget(self, reading: Reading, model: str) -> Budget:
        name = f"{reading.budget}:{model}"
        budget = self.known.get(name)
        if budget is None:
            if len(self.known) >= MOST_BUDGETS:
                del self.known[min(self.known, key=lambda other: self.known[other].dated_at)]
            budget = self.known[name] = Budget(reading.budget, reading.unit, model)
        return budget

    def _has_room(self, reading: Reading, event: Done) -> bool:
        return reading.remaining > 0.02 * reading.limit + self._need(reading, event, 2.0)

    def _need(self, reading: Reading, event: Done, times: float) -> float:
        return 1.0 if reading.unit is BudgetUnit.REQUESTS else times * event.estimated_tokens * self.token_scale

    def explains(self, event: Done, trial: LoggedCall, log: CallLog, feedback_s: float) -> bool:
        """Return whether a budget explains a refusal: it is reported to be empty, or computed to be if the refusal has
        no reading."""
        now, readings = event.at, {f"{r.budget}:{event.model}": r for r in event.readings.budgets}
        retry_s = event.readings.retry_after_s
        retry_at = None if retry_s is None or retry_s < 1.0 else now + retry_s
        explained = False
        for name, budget in self.known.items():
            if budget.model not in ("", event.model):
                continue
            reading = readings.get(name)
            if reading is not None:
                empty = reading.remaining < self._need(reading, event, 1.2)
            else:
                empty = trial.sent_at > budget.dated_at and budget.remaining(now, log) < FEW * budget.cost
            if not empty:
                continue
            if budget.trust.believed:
                explained |= doubt.confirmed(budget, now, retry_at)
            elif reading is not None and budget.trust.is_enforced_again(log, now, feedback_s):
                budget.trust.restore()
                self._note(f"{budget.name} is trusted again: calls are refused for it")
        return self._hidden_explains(event, trial, log) or explained

    def _hidden_explains(self, event: Done, trial: LoggedCall, log: CallLog) -> bool:
        hidden, now = self.hidden, event.at
        hint = hidden.hint(trial, now, event.readings.retry_after_s, event.readings.retry_grain_s)
        if hidden.budget is None or hint is None:
            return False
        if hidden.explains(hint, now):
            hidden.empty(hint, trial, event.spent.requests, log, now)
            return True
        return hidden.begins_anew(hint, trial, event.spent.requests, log, now)

    def names_one_end(self, refusals: Iterable[LoggedCall], log: CallLog, now: float) -> bool:
        """Return whether a window that is not reported explains an episode of refusals."""
        if any(budget.is_low(now, log) for budget in self._believed()):
            return False
        before = self.hidden.budget
        learned = self.hidden.learn(refusals, log, now)
        if learned and before is None and self.hidden.budget is not None:
            budget = self.hidden.budget
            self._note(f"Retry-After reveals a window of {budget.nature.lasts_s:.0f} s, {budget.limit:.0f} calls")
        return learned

    def refused_with_room(self, now: float) -> bool:
        """Note a refusal although all budgets had room; returns whether it is the second within a few seconds and the
        rate is known."""
        repeated = now - self.room_at < 3.0
        self.room_at = now
        rates = [b.refill_per_s for b in self._believed() if b.unit is BudgetUnit.REQUESTS]
        self.room_per_s = min(rates, default=0.0)
        return repeated and self.room_per_s > 0

    def _believed(self) -> Iterator[Budget]:
        return (budget for budget in self.known.values() if budget.trust.believed)

    def advance(self, now: float, log: CallLog, feedback_s: float) -> str:
        """Let time pass; returns a finding as a sentence, '' if there is none."""
        finding = self.hidden.advance(now, log, feedback_s)
        for budget in self.known.values():
            if doubt.advance(budget, now, log, feedback_s):
                budget.trust.drop(now)
                terms = f"{budget.limit:.0f} per {budget.nature.lasts_s:.0f} s"
                finding = f"{budget.name} dropped: {terms} is reported, but calls beyond it are accepted"
        if finding:
            self._note(finding)
        return finding

    def _note(self, text: str) -> None:
        self.notes = [*self.notes, text][-MOST_NOTES:]
        self.news = [*self.news, text][-MOST_NOTES:]

    def next_at(self, now: float, log: CallLog, feedback_s: float) -> float | None:
        """Return when time alone changes something."""
        budgets = [*self.known.values(), *([self.hidden.budget] if self.hidden.budget else [])]
        times = [at for budget in budgets if (at := doubt.next_at(budget, now, log, feedback_s)) is not None]
        return min(times, default=None)

    def buckets(self, now: float, log: CallLog) -> list[Bucket]:
        buckets = [budget.bucket(now, log) for budget in self._believed()]
        if self.hidden.budget is not None:
            buckets.append(self.hidden.budget.bucket(now, log))
        return buckets
