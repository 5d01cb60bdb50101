"""Which lines a full part of the audit log displaces, and what is kept of them.

A part is shared evenly by its subjects, and a subject's share evenly by the kinds of its actions: a subject with fewer
lines than its share keeps all of them, and the rest of its share goes to the others. Of each kind the first and the
newest lines are kept. So a subject that repeats an action displaces only its own lines of that kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

FIRST_SHARE = 10
FIRST_MOST = 100
"""One in `FIRST_SHARE` of a kind's kept lines is one of the first, at most `FIRST_MOST` of them."""
COUNTS_NAMED = 50
OTHERS = "others"


@dataclass(frozen=True, slots=True)
class Displaced:
    """What stands in the place of lines that follow each other and were displaced. `since` and `until`: unix s of the
    first and of the last of them. `counts`: subject and action -> how often, those of counted lines included. `weak`:
    how many were sealed by the store's own key. `problem`: why one of them could not be checked, '' if all were good.
    `key`: which secret sealed it; `previous`: the hash of the line before; `hash`: that of the last line displaced."""

    first: int
    last: int
    since: float
    until: float
    counts: dict[str, int]
    weak: int
    problem: str
    key: str
    previous: str
    hash: str
    seal: str = ""

    @property
    def lines(self) -> int:
        return self.last - self.first + 1

    @property
    def sealed(self) -> dict[str, Any]:
        """The fields that are sealed."""
        return {name: value for name, value in asdict(self).items() if name != "seal"}


def merged(run: Sequence[Displaced]) -> Displaced:
    """Merge consecutive records into one, which is not sealed yet."""
    counts: dict[str, int] = {}
    for record in run:
        for name, count in record.counts.items():
            key = name if name in counts or len(counts) < COUNTS_NAMED else OTHERS
            counts[key] = counts.get(key, 0) + count
    return Displaced(
        run[0].first, run[-1].last, run[0].since, run[-1].until, counts, sum(record.weak for record in run),
        next((record.problem for record in run if record.problem), ""), "", run[0].previous, run[-1].hash,
    )  # fmt: skip


def lines_to_displace(kinds: Sequence[tuple[str, str] | None], most: int) -> set[int]:
    """Choose the lines to displace, so that lines and records of displaced ones are at most `most` together.

    `kinds`: each entry's subject and action, oldest first; None for a record of displaced lines, which is joined with
    those beside it. Rules, in their order: the lines are shared evenly between subjects, then between a subject's
    actions; of an action the middle goes. Half of `most` is always for lines, however scattered what is kept lies.
    """
    budget = most
    while True:
        chosen = _beyond(kinds, budget)
        excess = _entries(kinds, chosen) - most
        if excess <= 0 or budget <= most // 2:
            return chosen
        budget = max(most // 2, budget - excess)


def even_shares(sizes: Mapping[str, int], total: int) -> dict[str, int]:
    """Divide `total` evenly: nobody gets more than its size, nor less than another unless it gets its whole size. What
    cannot be divided goes to the later ones of equal size."""
    shares, remaining = dict[str, int](), total
    ordered = sorted(sizes, key=lambda name: sizes[name])
    for at, name in enumerate(ordered):
        shares[name] = min(sizes[name], remaining // (len(ordered) - at))
        remaining -= shares[name]
    return shares


def _beyond(kinds: Iterable[tuple[str, str] | None], most: int) -> set[int]:
    lines_by_subject: dict[str, dict[str, list[int]]] = {}
    for at, kind in enumerate(kinds):
        if kind is not None:
            lines_by_subject.setdefault(kind[0], {}).setdefault(kind[1], []).append(at)
    chosen: set[int] = set()
    of_subject = even_shares({who: sum(map(len, actions.values())) for who, actions in lines_by_subject.items()}, most)
    for who, actions in lines_by_subject.items():
        of_action = even_shares({action: len(lines) for action, lines in actions.items()}, of_subject[who])
        for action, lines in actions.items():
            first = min(of_action[action] // FIRST_SHARE, FIRST_MOST)
            chosen.update(lines[first : first + len(lines) - of_action[action]])
    return chosen


def _entries(kinds: Sequence[tuple[str, str] | None], chosen: set[int]) -> int:
    """Return how many entries there will be; a run of displaced lines and records counts one."""
    count, in_run = 0, False
    for at, kind in enumerate(kinds):
        is_displaced = kind is None or at in chosen
        count += not (is_displaced and in_run)
        in_run = is_displaced
    return count
