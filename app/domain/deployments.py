"""Which of several deployments a unit goes to: the one with the best `success_rate / (1 + load)`.

Load is work in hand over limit, and a unit counts as soon as it is assigned, so that of a page no deployment takes
everything. Chance comes in as numbers: it breaks ties, and sends a small share elsewhere, because a deployment that
gets nothing can never show that it has recovered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

EXPLORED = 0.05
"""Share of the units that go to another deployment than the best, where one has room."""
TIE = 1e-9


@dataclass(frozen=True, slots=True)
class Candidate:
    """One deployment as it stands. `in_hand` are open calls and units assigned, `limit` is at least 1; a `broken` one
    makes no calls for now."""

    success_rate: float
    in_hand: float
    limit: int
    broken: bool = False

    @property
    def score(self) -> float:
        return self.success_rate / (1.0 + self.in_hand / self.limit)

    @property
    def has_room(self) -> bool:
        return self.in_hand < self.limit


class Choice(NamedTuple):
    """`score` is the chosen deployment's at that moment; `elsewhere` tells that another one could have been taken."""

    deployment: int
    score: float
    elsewhere: bool


def choose(candidates: Sequence[Candidate], draw: float) -> Choice:
    """One of the candidates, by its place. `draw` is chance in [0, 1).

    Rules: a broken one only if all are; in `EXPLORED` of the draws one of those with room that are not the best, if
    there is any; else the best, among equals the one that the draw names.
    """
    usable = [n for n, candidate in enumerate(candidates) if not candidate.broken] or list(range(len(candidates)))
    elsewhere = sum(not candidate.broken for candidate in candidates) > 1
    top = max(candidates[n].score for n in usable)
    best = [n for n in usable if candidates[n].score >= top - TIE]
    others = [n for n in usable if n not in best and candidates[n].has_room]
    if draw < EXPLORED and others:
        chosen = _drawn(others, draw / EXPLORED)
    else:
        chosen = _drawn(best, max(0.0, draw - EXPLORED) / (1.0 - EXPLORED))
    return Choice(chosen, candidates[chosen].score, elsewhere)


def assign(candidates: Sequence[Candidate], draws: Iterable[float]) -> list[Choice]:
    """A choice for each draw, in order, each counted at once."""
    now, choices = list(candidates), []
    for draw in draws:
        choice = choose(now, draw)
        taken = now[choice.deployment]
        now[choice.deployment] = replace(taken, in_hand=taken.in_hand + 1)
        choices.append(choice)
    return choices


def _drawn(places: Sequence[int], draw: float) -> int:
    return places[min(len(places) - 1, int(draw * len(places)))]
