"""The limits of a simulated account, charged as the real ones are. Pure: `now` is seconds on any steady clock.

Sources: the providers' rate-limit guides. OpenAI counts refused requests too and charges tokens up front, the larger of
`max_tokens` and an estimate. Anthropic charges input up front and output by use; refused requests cost nothing.
Both refill continuously and are one minute deep; either may in truth enforce shorter windows, which headers never show.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from dicast.app.providers.simulated.budgets import Account, State, amount_of, longest_wait, parse_budgets
from dicast.app.providers.simulated.config import Behaviour

_RAMP_WINDOW_S = 10.0
_RAMP_ALLOWANCE = 15
_ROUNDING = 1e-9
_DEEPEST_DEBT = 0.1  # of the depth: refused requests cannot push the next acceptance away for ever


class Rejection(NamedTuple):
    """Why a call was not admitted, and after how many seconds it would be."""

    reason: str
    wait_s: float


class Level(NamedTuple):
    """A bucket as headers report it: per minute, what is left, seconds until it is full."""

    limit: int
    remaining: float
    full_in_s: float


class TokenBucket:
    """Continuous refill at `per_min`, `burst_s` seconds deep, full at first; with a quantum, also windows."""

    def __init__(self, per_min: int, burst_s: float, quantum_s: float, now: float) -> None:
        self.per_min = per_min
        self._rate = per_min / 60
        self._depth = self._rate * burst_s
        self._level = self._depth
        self._at = now
        self._quantum_s = quantum_s
        self._window = -1
        self._in_window = 0.0

    def wait_s(self, amount: float, now: float) -> float:
        """Return 0 if `amount` may be taken now, else the time until it may. More than the depth needs a full
        bucket."""
        self._refill(now)
        need = min(amount, self._depth)
        short = need - self._level
        wait = short / self._rate if short > _ROUNDING else 0.0
        if self._quantum_s and self._in_window and self._in_window + amount > max(1.0, self._rate * self._quantum_s):
            wait = max(wait, (self._window + 1) * self._quantum_s - now)
        return wait

    def take(self, amount: float, now: float) -> None:
        """Charge; the level may fall below zero, as when output turns out longer than what was left."""
        self._refill(now)
        self._level -= amount
        self._in_window += amount

    def burn(self, amount: float, now: float) -> None:
        """Charge a refused call."""
        self._refill(now)
        self._level = max(min(self._level, -_DEEPEST_DEBT * self._depth), self._level - amount)

    def level(self, now: float) -> Level:
        self._refill(now)
        remaining = min(self._depth, max(0.0, self._level))
        return Level(self.per_min, remaining, (self._depth - self._level) / self._rate)

    def _refill(self, now: float) -> None:
        self._level = min(self._depth, self._level + max(0.0, now - self._at) * self._rate)
        self._at = max(self._at, now)
        if self._quantum_s and (window := math.floor(now / self._quantum_s)) != self._window:
            self._window, self._in_window = window, 0.0


class Limits:
    """Everything that may refuse a call of one model for its rate."""

    def __init__(self, behaviour: Behaviour, now: float, unix_s: float = 0.0) -> None:
        """`unix_s` is the Unix time at which `now` was 0; windows end by that clock."""

        def bucket(per_min: int | None) -> TokenBucket | None:
            return None if per_min is None else TokenBucket(per_min, behaviour.burst, behaviour.quantum, now)

        self.requests = bucket(behaviour.rpm)
        self.tokens = bucket(behaviour.tpm)
        self.output = (
            None if behaviour.output_tpm is None else TokenBucket(behaviour.output_tpm, behaviour.burst, 0, now)
        )
        self._accounts = (
            [Account(budget, now, unix_s) for budget in parse_budgets(behaviour.budgets)] if behaviour.budgets else []
        )
        self._ramp = behaviour.ramp
        self._recent: deque[float] = deque()
        self._before: deque[float] = deque()

    def admit(self, tokens: int, now: float) -> Rejection | None:
        """Charge one request of `tokens`, or return why it is not admitted and charge nothing."""
        rejection = self._rejection(tokens, now)
        if rejection is None:
            if self.requests:
                self.requests.take(1, now)
            if self.tokens:
                self.tokens.take(tokens, now)
            for account in self._accounts:
                account.take(amount_of(account.budget, tokens), now)
            if self._ramp:
                self._recent.append(now)
        return rejection

    def _rejection(self, tokens: int, now: float) -> Rejection | None:
        if self._ramp and self._too_steep(now):
            return Rejection("ramp", 2.0)
        if self.requests and (wait_s := self.requests.wait_s(1, now)):
            return Rejection("rpm", wait_s)
        if self.tokens and (wait_s := self.tokens.wait_s(tokens, now)):
            return Rejection("tpm", wait_s)
        if self.output and (wait_s := self.output.wait_s(1, now)):
            return Rejection("output_tpm", wait_s)
        wait_s, unit = longest_wait(self._accounts, tokens, now)
        return Rejection("rpm" if unit == "requests" else "tpm", wait_s) if wait_s else None

    def states(self, now: float) -> list[State]:
        """Return the additional budgets as headers report them."""
        return [account.state(now) for account in self._accounts]

    def _too_steep(self, now: float) -> bool:
        while self._recent and self._recent[0] <= now - _RAMP_WINDOW_S:
            self._before.append(self._recent.popleft())
        while self._before and self._before[0] <= now - 2 * _RAMP_WINDOW_S:
            self._before.popleft()
        return len(self._recent) >= self._ramp * len(self._before) + _RAMP_ALLOWANCE
