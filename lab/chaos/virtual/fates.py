"""What becomes of what a client sends to the store, drawn by odds or chosen for one piece of it, and of what it asks of
a batch API."""

from __future__ import annotations

import random
from dataclasses import dataclass

STORE_GONE_S = 3.0
"""Refused for so long, a connection's caller is told: redis-py has tried again as often as it does by then."""


@dataclass(frozen=True, slots=True)
class Fate:
    """Of one parcel, the commands that a client has sent in one piece.

    applied    how many of its commands the store obeys; None: all
    answered   whether its replies arrive
    broken_s   how much later the connection ends, if they do not: redis-py sends the parcel once more then, or after
               its own deadline, whichever is sooner
    refused_s  for how long its client cannot connect again: after `STORE_GONE_S` redis-py has given up, and its caller
               has an error
    echo_s     so much later the store obeys the parcel once more, and nobody hears the answer: it had stayed in a
               buffer on its way, and its client has long sent it by another
    """

    applied: int | None = None
    answered: bool = True
    broken_s: float = 0.0
    refused_s: float = 0.0
    echo_s: float | None = None


WELL = Fate()
LOSSES = {
    "resent": Fate(answered=False, broken_s=0.01),
    "resent late": Fate(answered=False, broken_s=4.5, refused_s=0.2),
    "told": Fate(answered=False, broken_s=0.01, refused_s=STORE_GONE_S),
    "told late": Fate(answered=False, broken_s=4.5, refused_s=2 * STORE_GONE_S),
    "echoed": Fate(echo_s=0.01),
    "echoed late": Fate(echo_s=10.0),
}
"""Each way in which one answer can be lost, or one parcel come twice."""


@dataclass(frozen=True, slots=True)
class StoreOdds:
    """Probabilities for each parcel: it does not arrive, its answer does not, half of it arrives, it comes again."""

    away: float = 0.0
    lost: float = 0.0
    halved: float = 0.0
    echoed: float = 0.0

    def draw(self, chance: random.Random, size: int) -> Fate:
        fate, slow = chance.random(), chance.random() < 0.2
        later_s = chance.uniform(0.01, 10.0 if slow else 0.1)
        gone_s = STORE_GONE_S if chance.random() < 0.3 else 0.0
        if fate < self.away:
            return Fate(0, answered=False, broken_s=later_s, refused_s=gone_s)
        fate -= self.away
        if fate < self.lost:
            return Fate(answered=False, broken_s=later_s, refused_s=gone_s)
        fate -= self.lost
        if fate < self.halved and size > 1:
            return Fate(chance.randrange(1, size), answered=False, broken_s=later_s, refused_s=gone_s)
        fate -= self.halved
        return Fate(echo_s=later_s) if 0 <= fate < self.echoed else WELL


@dataclass(frozen=True, slots=True)
class BatchOdds:
    """Probabilities at a batch API. For each request to it: it is not obeyed, its answer is lost, it is obeyed after
    its sender has given up, a gateway answers instead, it is refused for now. For each batch: its list shows it late,
    its end comes late, some of its requests are not made in time. For each download: it breaks off, or is not whole
    yet."""

    dropped: float = 0.0
    lost: float = 0.0
    late: float = 0.0
    gateway: float = 0.0
    refused: float = 0.0
    unlisted: float = 0.0
    slow: float = 0.0
    expire: float = 0.0
    cut: float = 0.0
    partial: float = 0.0

    def draw(self, chance: random.Random) -> str:
        """What befalls a request; '' nothing."""
        fate = chance.random()
        for kind in ("dropped", "lost", "late", "gateway", "refused"):
            if 0 <= fate < getattr(self, kind):
                return kind
            fate -= getattr(self, kind)
        return ""
