"""How a job is laid out: lanes, positions in a lane, and how much of it is published ahead.

A lane holds the units of all agents of one pool, so that a slow pool never holds back another's pages. Agents with the
same several deployments have a lane of their own; the pool of each unit is decided when it is sent. A panel whose later
judges are called only if needed has lanes for each of its stages.

In a lane the units stand in the order item, replicate, agent, dimension; a unit's index there is its position. Where
one call answers several replicates, these stand beside each other: in the order item, agent, dimension, replicate, or,
where a call asks about all dimensions, item, agent, replicate, dimension. A page is a run of positions. Everything is
arithmetic on positions, so a job of a million units needs no list of them.

Beside the layout stand the rules that planning follows: how a batched call's usage is divided, which deployment a unit
is sent to, how items are split into pieces of bounded size, where a job has stopped calling, and how long the pipeline
waits (`Intervals`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from dicast.app.domain.dimension import Dimension
from dicast.app.domain.item import Item
from dicast.app.domain.opinion import ErrorKind, Usage

Road = Literal["online", "batch", "flex", "auto"]
"""How a unit's request gets to its provider: in a call of its own; as one of a batch, cheaper and within a day; in a
call of OpenAI's flex service, cheaper and slow; or by batches as long as these end in time, and online from then on."""


class Unit(NamedTuple):
    """The unit at one position; all fields are indices, and `item` counts from the start of the job's items."""

    item: int
    replicate: int
    agent: int
    dimension: int


@dataclass(frozen=True, slots=True)
class Lane:
    """The units of a job that have the same choice of pools, usually one. `agents` are indices into the job's agents,
    `pools` the pools of their deployments in order; `replicates` counts the job's rounds."""

    pools: tuple[str, ...]
    agents: tuple[int, ...]
    dimensions: int
    replicates: int
    batched: bool
    stage: int = 0
    """The lane's units are planned when those of all earlier stages have ended for their item."""
    road: Road = "online"
    together: int = 1
    """The replicates that one call answers, a divisor of `replicates`."""

    @property
    def grouped(self) -> bool:
        """True if one message covers several units: `stride` of them."""
        return self.batched or self.together > 1

    @property
    def may_batch(self) -> bool:
        """Whether its units may go by batches: all of them, or as long as there is time."""
        return self.road in ("batch", "auto")

    @property
    def units_per_item(self) -> int:
        return self.replicates * len(self.agents) * self.dimensions

    @property
    def stride(self) -> int:
        """The units that one message covers: all dimensions of one agent and item when batched, for each of the
        replicates that its call answers."""
        return (self.dimensions if self.batched else 1) * self.together

    def unit(self, position: int) -> Unit:
        if self.together > 1:
            return self._unit_of_group(position)
        rest, dimension = divmod(position, self.dimensions)
        rest, agent = divmod(rest, len(self.agents))
        item, replicate = divmod(rest, self.replicates)
        return Unit(item, replicate, self.agents[agent], dimension)

    def _unit_of_group(self, position: int) -> Unit:
        if self.batched:
            rest, dimension = divmod(position, self.dimensions)
            rest, replicate = divmod(rest, self.replicates)
        else:
            rest, replicate = divmod(position, self.replicates)
            rest, dimension = divmod(rest, self.dimensions)
        item, agent = divmod(rest, len(self.agents))
        return Unit(item, replicate, self.agents[agent], dimension)

    def group_of(self, position: int) -> range:
        """Return the positions that the message of a unit covers, if it covers a whole group."""
        first = position - position % self.stride
        return range(first, first + self.stride)

    def items_of(self, first: int, count: int) -> range:
        """Return the items that a page from position `first` needs."""
        return range(first // self.units_per_item, (first + count - 1) // self.units_per_item + 1)


def lanes(
    pools: Sequence[tuple[str, ...]], dimensions: int, replicates: int, batched: Sequence[bool],
    stages: Sequence[int] | None = None, roads: Sequence[Road] | None = None, answers: Sequence[int] | None = None,
) -> list[Lane]:  # fmt: skip
    """Group agents by (pools, batched, stage, road, replicates together); `pools[i]`, `batched[i]`, `stages[i]`,
    `roads[i]` and `answers[i]`, the most answers of one call, are those of agent i. Order: first appearance."""
    count = len(pools)
    online: Road = "online"
    roads = roads or [online] * count
    together = [replicates_together(replicates, most) for most in answers or [1] * count]
    groups: dict[tuple[tuple[str, ...], bool, int, Road, int], list[int]] = {}
    for agent, key in enumerate(zip(pools, batched, stages or [0] * count, roads, together, strict=True)):
        groups.setdefault(key, []).append(agent)
    return [
        Lane(names, tuple(agents), dimensions, replicates, is_batched, stage, road, of_call)
        for (names, is_batched, stage, road, of_call), agents in groups.items()
    ]


def replicates_together(replicates: int, most: int) -> int:
    """Return how many replicates one call answers that gives at most so many answers: as many as divide them evenly."""
    return next(count for count in range(min(replicates, most), 0, -1) if replicates % count == 0)


@dataclass(frozen=True, slots=True)
class Window:
    """How many units a lane keeps published: enough to keep the pool busy, and no more than a few seconds of work."""

    units: int
    page: int

    @property
    def low_water(self) -> int:
        """The number of open units at which the lane is planned again."""
        return self.units - self.page


def window(*, rate_per_s: float, limit: int, seconds: float, page_max: int, stride: int, jobs: int = 1) -> Window:
    """Return the window of one lane.

    `rate_per_s` is the pool's present rate of calls, 0 when not known, shared by `jobs` running jobs; `limit` is the
    most calls that may be open. Three times the limit keep every slot busy during two calls, until the lane is planned
    again. Holds: stride <= page <= max(page_max, stride), and page is a multiple of stride.
    """
    calls = max(3 * limit, math.ceil(rate_per_s * seconds / max(1, jobs)))
    page_calls = max(1, min(math.ceil(calls / 3), page_max // stride))
    return Window(units=max(calls, page_calls) * stride, page=page_calls * stride)


def close_window(*, limit: int, page_max: int, stride: int) -> Window:
    """Return the window of a lane whose job may end at any time, so that few units are published in vain.

    One and a half times the limit keep every slot busy while the lane is planned again. Holds as for `window`.
    """
    page_calls = max(1, min(math.ceil(limit / 2), page_max // stride))
    return Window(units=(limit + page_calls) * stride, page=page_calls * stride)


BATCH_WINDOW_UNITS = 100_000
"""How many units of a lane whose road is `batch` are open at once: a full batch at the provider, and the next."""


def batch_window(*, page_max: int, stride: int) -> Window:
    """Return the window of a lane whose units go by batches: no call keeps a slot waiting, so it is as large as the
    store bears."""
    page = max(1, page_max // stride) * stride
    return Window(units=max(page, BATCH_WINDOW_UNITS), page=page)


MAX_LABEL_CHARS = 200


def batch_label(dimensions: Sequence[Dimension]) -> str:
    """Return a label for a call, for people: its dimensions' ids, cut to `MAX_LABEL_CHARS` characters."""
    if len(dimensions) == 1:
        return dimensions[0].id
    text = ", ".join([dimension.id for dimension in dimensions])
    return text if len(text) <= MAX_LABEL_CHARS else f"{text[: MAX_LABEL_CHARS - 3]}..."


def divide_usage(usage: Usage, opinions: int) -> list[Usage]:
    """Divide the call's tokens into `opinions` equal parts, with the remainder in the first, so that they add up to the
    call."""
    if opinions < 1:
        raise ValueError(f"a call's usage is divided among at least 1 opinion, got {opinions}")
    inputs, extra_input = divmod(usage.input_tokens, opinions)
    outputs, extra_output = divmod(usage.output_tokens, opinions)
    first = Usage(input_tokens=inputs + extra_input, output_tokens=outputs + extra_output)
    return [first, *[Usage(input_tokens=inputs, output_tokens=outputs)] * (opinions - 1)]


EXPLORED = 0.05
"""The share of units that go to another deployment than the best one, if one has room."""
TIE = 1e-9


@dataclass(frozen=True, slots=True)
class Candidate:
    """The present state of one deployment. `in_hand` counts open calls and assigned units, `limit` is at least 1; a
    `broken` one makes no calls for now."""

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
    """The index of the chosen deployment and its score at that moment; `elsewhere` tells that another one could have
    been chosen."""

    deployment: int
    score: float
    elsewhere: bool


def choose(candidates: Sequence[Candidate], draw: float) -> Choice:
    """Choose one of the candidates. `draw` is a random number in [0, 1).

    Rules: a broken one only if all are; in `EXPLORED` of the draws one of those with room that are not the best, if
    there is any; else the best, and among equals the one that the draw selects.

    It is the one with the best `success_rate / (1 + load)`. Load is work in hand divided by the limit. A unit counts as
    soon as it is assigned, so that one deployment does not get a whole page. Randomness comes in as numbers: it breaks
    ties, and sends a small share of units elsewhere, because a deployment that gets no calls can never show that it has
    recovered.
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
    """Make a choice for each draw, in order; each choice counts for the next ones."""
    now, choices = list(candidates), []
    for draw in draws:
        choice = choose(now, draw)
        taken = now[choice.deployment]
        now[choice.deployment] = replace(taken, in_hand=taken.in_hand + 1)
        choices.append(choice)
    return choices


def _drawn(places: Sequence[int], draw: float) -> int:
    return places[min(len(places) - 1, int(draw * len(places)))]


class Stop(BaseModel):
    """Why a job has stopped calling a place, which is a model of a pool. The job's first `after` units at the place all
    ended in this error (0: no call could be made at all, or the job gave up waiting). `kind` is the error of the units
    that were not called.
    """

    model_config = ConfigDict(defer_build=True, frozen=True)

    pool: str
    model: str
    kind: ErrorKind
    after: int
    status_code: int | None
    message: str

    @property
    def place(self) -> str:
        return place(self.pool, self.model)

    @property
    def reason(self) -> str:
        """One line for people: where, after how many calls, and what the error said."""
        if self.kind in (ErrorKind.POOL_DOWN, ErrorKind.DEADLINE):
            return self.message
        if self.after == 0:
            prefix = f"pool {self.pool!r}: "
            return f"pool {self.pool!r} cannot be used: {self.message.removeprefix(prefix)}"
        first = "the first call" if self.after == 1 else f"the first {self.after} calls"
        return f"{first} of {self.model} in pool {self.pool!r} ended in: {self.message}"


class DroppedParameter(BaseModel):
    """A parameter without which a job's calls at a place are made, because the model has refused it; `message` says
    how."""

    model_config = ConfigDict(defer_build=True, frozen=True)

    pool: str
    model: str
    name: str
    message: str

    @property
    def reason(self) -> str:
        """One line for people."""
        return f"{self.model} in pool {self.pool!r} was asked without {self.name}, which it refuses: {self.message}"


def place(pool: str, model: str) -> str:
    """Return the name of a place where a job makes calls; pools' names hold no '|'."""
    return f"{pool}|{model}"


PIECE_BYTES = 8_000_000
"""The most bytes of text that travel together, not counting the last item. Writing a piece blocks the store for some
hundredths of a second, and a worker holds it in memory several times."""


def pieces(items: Iterable[Item], most: int, most_bytes: int = PIECE_BYTES) -> Iterator[list[Item]]:
    """Yield runs of at most `most` items (>= 1), each ended by the item with which its texts reach `most_bytes`."""
    piece: list[Item] = []
    size = 0
    for item in items:
        piece.append(item)
        size += item.stored_bytes
        if len(piece) >= most or size >= most_bytes:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


@dataclass(frozen=True, slots=True)
class Intervals:
    """The pipeline's intervals. All workers of an installation must use the same ones, because they act on each other's
    records.

    Intervals in milliseconds run by the lease clock, those in seconds by the clock of an event loop.

    They say how long the pipeline waits before it takes silence for loss, and how often it checks.
    """

    unclaimed_ms: int = 60_000
    """A published unit that nobody has claimed for this long is published again."""
    page_still_ms: int = 30_000
    """A page without activity for this long is checked. The check does not resend what a living worker has in hand, so
    pages with slow calls are only checked more often than needed."""
    unattended_ms: int = 15_000
    """A job that was submitted this long ago and has not started has lost its message; a running job is planned again
    this often, since whoever was asked to plan may have died."""
    look_soon_ms: int = 2_000
    """After a death or a broken connection, all pages and jobs are checked after this long, when messages that were put
    back have had time to be claimed."""
    owner_silent_ms: int = 16_000
    """A message that came back, and whose units another worker owns, is due again after this long. By then an owner
    that has died is silent (see `NodeIntervals.beacon_s`), and its work may be claimed."""
    try_every_ms: int = 10_000
    """Failures of a job that follow each other faster than this count as one try."""
    disk_ms: int = 3_600_000
    """A job whose pages no disk takes for this long is given up."""
    pool_seen_ms: int = 15_000
    """A pool is known to a living worker if it was announced at most this long ago."""
    pool_gone_ms: int = 120_000
    """A pool that no worker has announced for this long has left the configuration."""
    due_again_ms: int = 1000
    """A message that was due and could not be sent by this worker is due again after this long."""
    beat_silent_ms: int = 5000
    """After this long without a tick, a worker takes over from the beat."""
    look_again_ms: int = 1000
    """A job's deadlines are checked again after this long, unless the check itself finds that later will do."""
    due_every_s: float = 0.2
    """How often each worker publishes what is due. Its other housekeeping runs once a second."""
    tell_pools_every_s: float = 5.0
    """How often a worker announces the pools it knows: a few times per `pool_seen_ms`."""
    elsewhere_s: float = 1.0
    """Planning that this worker leaves to another is requested again after this long."""
    stopping_s: float = 2.0
    """How long a stopping worker waits for a claim that is under way."""
    batch_forms_ms: int = 3000
    """A batch is formed this long after the last page of its lane was opened, or a unit of it became due."""
    batch_held_ms: int = 30_000
    """A worker that is working on a batch says so this often at least; else another goes on with it."""
    batch_poll_ms: tuple[int, int] = (1000, 60_000)
    """The shortest and the longest wait between two looks at a batch at its provider: a twentieth of its age."""
    batch_listed_ms: int = 120_000
    """A batch whose creation was not confirmed is looked for this long in its provider's list, before it is taken for
    never created."""
    batch_turnaround_s: float = 86_400.0
    """A batch is taken to need this long while none of its pool and model was seen to end: the provider's promise."""
    batch_cancelling_s: float = 600.0
    """A batch that is cancelled may go on for this long."""


STANDARD = Intervals()
