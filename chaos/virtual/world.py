"""What surrounds the nodes: time, the store's wires, the broker, the provider, and what is known of everything."""

from __future__ import annotations

import heapq
import itertools
import random
import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson
import redis

from app.domain.plan import Lane
from app.ledger.keys import PageRef
from app.ledger.records import Token
from chaos.virtual.loop import NodeLoop
from workers.store.keys import Keys

LOOK_EVERY_S = 0.5
START_MS = 1_000_000_000
PLACE = re.compile(r"(ITEM|AGENT|DIM) (\d+);")


class Message(NamedTuple):
    """What waits in a queue. `header` counts for its page's chord when it ends."""

    name: str
    args: tuple[Any, ...]
    header: bool = False


@dataclass
class Chord:
    """Celery's view of a page: it counts endings of messages, whichever they are."""

    size: int
    ended: int = 0


@dataclass
class Call:
    """One call as the provider sees it."""

    units: list[tuple[int, int, int]]
    node: str
    began: float
    good: bool = False


@dataclass(frozen=True)
class Odds:
    """How unkind this world is; probabilities for each message or command."""

    double: float = 0.0
    lose: float = 0.0
    shuffle: float = 0.0
    store_error: float = 0.0
    answer_lost: float = 0.0
    refuse: float = 0.0
    spoil: float = 0.0
    hang: float = 0.0


@dataclass
class World:
    """One seed's world. `fail` notes a violation; the run goes on."""

    client: redis.Redis
    chance: random.Random
    limit: int
    keys: Keys = field(default_factory=lambda: Keys("sim"))
    odds: Odds = field(default_factory=Odds)

    def __post_init__(self) -> None:
        self.now = 0.0
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = itertools.count()
        self.expiries: dict[str, float] = {}
        self.queues: dict[str, deque[Message]] = defaultdict(deque)
        self.unacked: dict[str, dict[int, tuple[str, Message]]] = defaultdict(dict)
        self.chords: dict[str, Chord] = {}
        self.calls: list[Call] = []
        self.open: dict[int, Call] = {}
        self.most_open = 0
        self.good: Counter[tuple[int, int, int]] = Counter()
        self.excused: Counter[tuple[int, int, int]] = Counter()
        self.pages: dict[PageRef, tuple[list[Any], list[Any]]] = {}
        self.completions: Counter[str] = Counter()
        self.announced: dict[str, bytes] = {}
        self.violations: list[str] = []
        self.trace: deque[str] = deque(maxlen=4000)
        self.commands = 0
        self._look_at = 0.0
        self.nodes: dict[str, Any] = {}
        self.lanes: list[Lane] = []

    # ------------------------------------------------------------------ time
    @property
    def now_ms(self) -> int:
        return START_MS + int(self.now * 1000)

    def at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (when, next(self._serial), act))

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        self.at(self.now + seconds, act)

    def tell(self, text: str) -> None:
        self.trace.append(f"{self.now:9.3f} {text}")

    def fail(self, text: str) -> None:
        self.violations.append(text)
        self.tell(f"VIOLATION {text}")

    def expire_keys(self) -> None:
        for key in [k for k, when in self.expiries.items() if when <= self.now]:
            del self.expiries[key]
            self.client.delete(key)

    def run(self, loops: Callable[[], list[NodeLoop]], done: Callable[[], bool], deadline_s: float) -> bool:
        """Turn loops and let time pass until `done` or the deadline; False at the deadline."""
        while True:
            running = loops()
            ready = [loop for loop in running if loop.ready]
            if ready:
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
            self.expire_keys()
            while self._timers and self._timers[0][0] <= self.now:
                heapq.heappop(self._timers)[2]()
            for loop in loops():
                if (t := loop.next_timer) is not None and t <= self.now:
                    loop.turn()

    # ------------------------------------------------------------------ broker
    def publish(self, queue: str, message: Message) -> None:
        copies = 2 if self.chance.random() < self.odds.double else 1
        for _ in range(copies):
            self.queues[queue].append(message)

    def take(self, queue: str, node: str) -> tuple[int, Message] | None:
        """The next message, which is the node's until it acknowledges; some vanish on the way."""
        waiting = self.queues[queue]
        while waiting:
            if self.chance.random() < self.odds.shuffle:
                waiting.rotate(-self.chance.randrange(len(waiting)))
            message = waiting.popleft()
            if self.chance.random() < self.odds.lose:
                self.tell(f"lost {message}")
                continue
            tag = next(self._serial)
            self.unacked[node][tag] = (queue, message)
            return tag, message
        return None

    def restore(self, node: str) -> int:
        """Put a node's messages back; returns how many."""
        taken = self.unacked.pop(node, {})
        for queue, message in taken.values():
            self.queues[queue].appendleft(message)
        return len(taken)

    def ended(self, ref: PageRef, body: Message) -> None:
        """One message of a page has ended and counts."""
        chord = self.chords.get(str(ref))
        if chord is None:
            return
        chord.ended += 1
        if chord.ended == chord.size:
            self.publish("control", body)

    # ------------------------------------------------------------------ provider
    def call(self, node: str, texts: str) -> int:
        """A call begins; it is open until `hang_up`, whatever becomes of its caller."""
        found: dict[str, list[int]] = defaultdict(list)
        for kind, number in PLACE.findall(texts):
            found[kind].append(int(number))
        units = [(found["ITEM"][0], found["AGENT"][0], d) for d in found["DIM"]]
        number = len(self.calls)
        call = Call(units, node, self.now)
        self.calls.append(call)
        self.open[number] = call
        self.most_open = max(self.most_open, len(self.open))
        if len(self.open) > self.limit:
            self.fail(f"I4: {len(self.open)} calls open, {self.limit} allowed")
        self.tell(f"{node} calls {units}, {len(self.open)} open")
        return number

    def hang_up(self, number: int) -> None:
        self.open.pop(number, None)

    def units_of(self, lane: int, _page: int, token: str) -> list[tuple[int, int, int]]:
        """The units of one message, as the provider names them."""
        plan, first = self.lanes[lane], Token.parse(token)
        positions = range(first.position, first.position + (plan.dimensions if first.batch else 1))
        return [(u.item, u.agent, u.dimension) for u in map(plan.unit, positions)]

    # ------------------------------------------------------------------ files
    def write_page(
        self, _folder: str, job: str, incarnation: str, lane: str, page: int, opinions: list[Any], errors: list[Any]
    ) -> None:
        ref = PageRef(job, incarnation, int(lane), page)
        written = (opinions, errors)
        before = self.pages.setdefault(ref, written)
        if _plain(before) != _plain(written):
            self.fail(f"I1: page {ref} was written twice, with different results")

    def finish(self, _folder: str, job: str, incarnation: str, header: Any) -> Any:
        opinions = [o for ref, (found, _) in self.pages.items() if ref[:2] == (job, incarnation) for o in found]
        return Report(header.status, sum(o.score is not None for o in opinions),
                      sum(o.score is None for o in opinions), header.calls, header.units)  # fmt: skip


class Report(NamedTuple):
    """Stands for the real one, which needs the files."""

    status: str
    scored: int
    failed: int
    calls: int
    units: int

    def model_dump_json(self) -> str:
        return orjson.dumps({**self._asdict(), "wall_s": 0.0}).decode()


def _plain(written: tuple[list[Any], list[Any]]) -> bytes:
    return orjson.dumps([[vars(entry) for entry in part] for part in written], default=str)
