"""What surrounds the nodes: time, the store's wires, the provider's side of every call, and what is known of all."""

from __future__ import annotations

import heapq
import itertools
import random
import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dicast.app.domain.cost import MoneyBudget
from dicast.app.domain.opinion import Usage
from dicast.app.domain.plan import STANDARD
from dicast.app.ledger.keys import LedgerKeys, PageRef
from dicast.app.providers.simulated import nonce_of
from dicast.workers.store.connection import StoreClient
from dicast.workers.store.keys import Keys
from lab.chaos.virtual.broker import Message, MessageOdds, VirtualBroker
from lab.chaos.virtual.fates import LOSSES, WELL, BatchOdds, Fate, StoreOdds
from lab.chaos.virtual.loop import NodeLoop
from lab.chaos.virtual.server import Command, Server

if TYPE_CHECKING:
    from lab.chaos.virtual.account import AccountBatch, BatchAccount
    from lab.chaos.virtual.jobs import SimJob
    from lab.chaos.virtual.wire import VirtualHost

LOOK_EVERY_S = 0.5
START_S = 1_000_000.0
WIRE_S = 0.004
PLACE = re.compile(r"(JOB|ITEM|AGENT|DIM) ([^;]+);")
HEARD = re.compile(r"^> call (\d+)$", re.MULTILINE)


class VirtualPlace(NamedTuple):
    """One unit as the provider sees it: by what stands in its texts, its replicate by the call's code."""

    text: str
    item: int
    agent: int
    dimension: int
    replicate: int = 0

    def __repr__(self) -> str:
        """A first round is told as it was before there were others: chance follows from it."""
        shown = self if self.replicate else self[:4]
        return f"VirtualPlace({', '.join(f'{name}={part!r}' for name, part in zip(self._fields, shown, strict=False))})"


@dataclass
class VirtualCall:
    """One call as the provider sees it. `usage` is what it charges; `ending` how it ended, '' while it is open."""

    number: int
    places: list[VirtualPlace]
    node: str
    pool: str
    began: float
    ending: str = ""
    usage: Usage = field(default_factory=Usage)
    excused: bool = False
    """Its node died, or was taken for dead, while it had the call's message in hand."""
    heard: frozenset[int] = frozenset()
    """The calls whose opinions a panel's chief was told of."""
    batch: AccountBatch | None = None
    """The batch of which it is a request; None for a call of its own."""

    @property
    def told(self) -> list[VirtualPlace]:
        """What an answer in part tells of."""
        return self.places[: len(self.places) // 2]


@dataclass(frozen=True)
class Answers:
    """Probabilities for each call: it is refused, spoilt, answered in part, or never answered."""

    refuse: float = 0.0
    spoil: float = 0.0
    part: float = 0.0
    hang: float = 0.0


@dataclass(frozen=True)
class Odds:
    """How unkind this world is."""

    store: StoreOdds = StoreOdds()
    messages: MessageOdds = MessageOdds()
    answers: Answers = Answers()
    batches: BatchOdds = BatchOdds()

    def told(self) -> list[str]:
        """What is not as it should be, by name."""
        kinds = [asdict(kind) for kind in (self.store, self.messages, self.answers, self.batches)]
        return [f"{name} {value:g}" for kind in kinds for name, value in kind.items() if value]


class World:
    """One seed's world. `fail` notes a violation; the run goes on."""

    def __init__(
        self, client: StoreClient, seed: int, *, limit: int, odds: Odds, folder: Path, tells: bool = False
    ) -> None:
        self.client, self.limit, self.folder = client, limit, folder
        self.seed, self.chance = seed, random.Random(f"world {seed}")
        self.keys = Keys("sim")
        self.now = self.wall_step_s = 0.0
        self.starts_s, self.budgets = START_S, list[tuple[MoneyBudget, int]]()
        self._timers: list[tuple[float, int, Callable[[], object]]] = []
        self._serial = itertools.count()
        self._expiries: dict[str, float] = {}
        self.server = Server(client, self.wall_us, self._expires)
        self.broker = VirtualBroker(self.chance, self.tell, tells=tells)
        self.odds = odds
        self.parcels = self.commands = self.primary = self.broken_before = 0
        self.chosen: dict[int, Fate] = {}
        self.echoed: list[Command] = []
        self.touched: dict[int, str] = {}
        self.stalled_until = 0.0
        self.calls: list[VirtualCall] = []
        self.open: dict[int, VirtualCall] = {}
        self._asked: Counter[tuple[VirtualPlace, ...]] = Counter()
        self.most_open = 0
        self.jobs: dict[str, SimJob] = {}
        self.texts: dict[str, SimJob] = {}
        self.completions: Counter[str] = Counter()
        self.announced: dict[str, dict[str, Any]] = {}
        self.pages: dict[PageRef, dict[int, str]] = {}
        self.lost_jobs: set[str] = set()
        self.excused: Counter[VirtualPlace] = Counter()
        self.excused_messages: Counter[str] = Counter()
        self.silent: set[str] = set()
        """Living nodes whose leases were taken back: how those calls ended is told to nobody."""
        self.violations: list[str] = []
        self.trace: deque[str] = deque(maxlen=4000)
        self._look_at = 0.0
        self.nodes: dict[str, Any] = {}
        self.intervals = STANDARD
        self.accounts: dict[str, BatchAccount] = {}
        """Those pools that have a batch API."""
        self.sent_again: Counter[str] = Counter()
        """By job, how many requests of batches were sent again whose creation nobody had confirmed, at most."""
        self.written_off: Counter[str] = Counter()
        """By job, how many of them were taken for calls without an answer instead."""
        self.members: dict[str, set[tuple[str, int, str]]] = defaultdict(set)
        """By batch, whose messages it has claimed, or was about to: job, lane and token."""

    # ------------------------------------------------------------------ odds
    @property
    def odds(self) -> Odds:
        return self._odds

    @odds.setter
    def odds(self, odds: Odds) -> None:
        self._odds, self.broker.odds = odds, odds.messages

    # ------------------------------------------------------------------ time
    def wall_us(self) -> int:
        """The store's clock."""
        return int((self.starts_s + self.now + self.wall_step_s) * 1_000_000)

    def at(self, when: float, act: Callable[[], object]) -> None:
        heapq.heappush(self._timers, (when, next(self._serial), act))

    def later(self, seconds: float, act: Callable[[], object]) -> None:
        self.at(self.now + seconds, act)

    def wire_s(self) -> float:
        return self.chance.uniform(0, WIRE_S)

    def tell(self, text: str) -> None:
        self.trace.append(f"{self.now:9.3f} {text}")

    def fail(self, text: str) -> None:
        self.violations.append(text)
        self.tell(f"VIOLATION {text}")

    def _expires(self, key: str, life_s: float | None) -> None:
        if life_s is None:
            self._expiries.pop(key, None)
        else:
            self._expiries[key] = self.now + self.wall_step_s + life_s

    def _bury_keys(self) -> None:
        wall = self.now + self.wall_step_s
        for key in [k for k, when in self._expiries.items() if when <= wall]:
            del self._expiries[key]
            self.client.delete(key)

    def run(self, loops: Callable[[], list[NodeLoop]], done: Callable[[], bool], deadline_s: float) -> bool:
        """Turn loops and let time pass until `done` or the deadline; False at the deadline."""
        while True:
            running = loops()
            if ready := [loop for loop in running if loop.ready]:
                self.chance.choice(ready).turn()
                continue
            if self.now >= self._look_at:
                self._look_at = self.now + LOOK_EVERY_S
                if done():
                    return True
            timers = [t for loop in running if (t := loop.next_timer) is not None]
            upcoming = min([*timers, *(t[0] for t in self._timers[:1])], default=deadline_s)
            if upcoming >= deadline_s:
                self.now = deadline_s
                return done()
            self.now = max(self.now, upcoming)
            self._bury_keys()
            while self._timers and self._timers[0][0] <= self.now:
                heapq.heappop(self._timers)[2]()
            for loop in loops():
                if (t := loop.next_timer) is not None and t <= self.now:
                    loop.turn()

    # ------------------------------------------------------------------ store
    def fate(self, host: VirtualHost, parcel: list[Command]) -> Fate:
        """What becomes of the next parcel."""
        number, self.parcels = self.parcels, self.parcels + 1
        self.commands += len(parcel)
        fate = self.chosen.get(number)
        if fate is None:
            fate = self._cut(host) if self.now < host.cut_until else self.odds.store.draw(self.chance, len(parcel))
        if fate != WELL:
            self.touched[number] = f"{host.name}: {' '.join(self.server.named(c) for c in parcel)}"
            self.tell(f"parcel {number} of {self.touched[number]}: {fate}")
        return fate

    def _cut(self, host: VirtualHost) -> Fate:
        """Cut off, most is lost on the way there, some on the way back, and some arrives when the cut is over."""
        way, later_s = self.chance.random(), self.chance.uniform(0.01, 2.0)
        if way < 0.6:
            return Fate(0, answered=False, broken_s=later_s)
        if way < 0.8:
            return replace(LOSSES["resent"], broken_s=later_s)
        held_s = host.cut_until - self.now + later_s
        return Fate(0, answered=False, broken_s=later_s, echo_s=held_s if self.odds.store.echoed else None)

    def obey(self, parcel: list[Command]) -> bytes:
        """The server's replies."""
        return self.server.apply(parcel)

    def flush(self) -> None:
        """The store is emptied, and the broker's queues with it, if it is that too."""
        self.broken_before = self.primary = self.primary + 1
        self._expiries.clear()
        self.server.flush()
        if not self.broker.tells:
            self.broker.queues.clear()

    def kept(self) -> tuple[dict[str, bytes], dict[str, float]]:
        """What the store holds now, for `fall_back`."""
        return self.server.dump(), dict(self._expiries)

    def fall_back(self, kept: tuple[dict[str, bytes], dict[str, float]]) -> None:
        """Another server takes over with what was kept; all connections end."""
        self.broken_before = self.primary = self.primary + 1
        self.server.restore(kept[0])
        self._expiries = dict(kept[1])
        for ref in [ref for ref in self.pages if not self._has_opened(ref)]:
            del self.pages[ref]  # it is opened once more, and none of its answers was in this page

    def _has_opened(self, ref: PageRef) -> bool:
        """Whether the store knows that a page was opened, be it gathered or not."""
        pages = self.server.client.hget(LedgerKeys(self.keys).job(ref.job), f"page:{ref.lane}")
        return int(pages or 0) > ref.page

    def forget(self, job_id: str) -> None:
        """What comes under this id from now on is another job."""
        self.completions.pop(job_id, None)
        self.announced.pop(job_id, None)
        self.lost_jobs.discard(job_id)
        for ref in [ref for ref in self.pages if ref.job == job_id]:
            del self.pages[ref]

    # ------------------------------------------------------------------ provider
    def call(self, node: str, pool: str, texts: str) -> tuple[VirtualCall, random.Random]:
        """A call begins; it is open until `hang_up`, whatever becomes of its caller. What the provider makes of it
        depends on what it is asked and how often it was asked that, on nothing else: its chance comes with it."""
        call, chance = self._called(node, pool, texts)
        self.open[call.number] = call
        self.most_open = max(self.most_open, len(self.open))
        if len(self.open) > self.limit:
            self.fail(f"the limit: {len(self.open)} calls open, {self.limit} allowed")
        self.tell(f"{node} calls {call.places}, {len(self.open)} open")
        return call, chance

    def call_in_batch(self, pool: str, texts: str, batch: AccountBatch) -> tuple[VirtualCall, random.Random]:
        """A request of a batch is called, as a call of its own would be. It meets no limit of calls."""
        call, chance = self._called("", pool, texts)
        call.batch = batch
        self.tell(f"{batch.id} calls {call.places}")
        return call, chance

    def _called(self, node: str, pool: str, texts: str) -> tuple[VirtualCall, random.Random]:
        found: dict[str, list[str]] = defaultdict(list)
        for kind, name in PLACE.findall(texts):
            found[kind].append(name)
        about = found["JOB"][0], int(found["ITEM"][0]), int(found["AGENT"][0])
        dimensions = [int(d) for d in found["DIM"]]
        rounds = self.texts[about[0]].rounds(nonce_of(texts), *about[1:], dimensions)
        places = [VirtualPlace(*about, d, round) for round in rounds for d in dimensions]
        asked = self._asked[tuple(places)] = self._asked[tuple(places)] + 1
        call = VirtualCall(len(self.calls), places, node, pool, self.now)
        call.heard = frozenset(map(int, HEARD.findall(texts)))
        self.calls.append(call)
        return call, random.Random(f"{self.seed} {places} {asked}")

    def write_off(self, batch: str) -> None:
        """The calls of a batch that the provider does not list are taken for calls without an answer, once."""
        for job_id, lane, token in self.members.pop(batch, ()):
            self.written_off[job_id] += 1
            self.excused.update(self.jobs[job_id].places(lane, token))

    def hang_up(self, call: VirtualCall, ending: str) -> None:
        """The call is over; how it ended first is how it ended."""
        if self.open.pop(call.number, None) is not None:
            call.ending = ending

    def excuse(self, node: str, message: Message) -> None:
        """The call of this message may be made again, and need not be told: its node dies, or is taken for dead."""
        places = self._places(message)
        self.excused.update(places)
        self.excused_messages[message.args[0]] += 1
        made = [call for call in self.calls if call.node == node and set(call.places) & places]
        if made:
            made[-1].excused = True

    def cut(self, node: str, message: Message) -> None:
        """The node hangs up in the middle of this message's call. An answer that is on its way may be lost."""
        places = self._places(message)
        made = [call for call in self.open.values() if call.node == node and set(call.places) & places]
        for call in made:
            self.hang_up(call, "cut")
        if not made:
            self.excuse(node, message)

    def _places(self, message: Message) -> set[VirtualPlace]:
        job_id, _, lane, _, token, _ = message.args
        return set(self.jobs[job_id].places(lane, token))
