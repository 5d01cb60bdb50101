"""The broker and Celery's chords: messages may be doubled, lost and shuffled, and belong to who has taken them."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple


class Message(NamedTuple):
    """What waits in a queue. `header` counts for its page's chord when it ends; `unit` is what its gate is told."""

    name: str
    args: tuple[Any, ...]
    header: bool = False
    unit: tuple[tuple[str, Any], ...] = ()
    came_back: bool = False


@dataclass(frozen=True)
class MessageOdds:
    """Probabilities for each message."""

    double: float = 0.0
    lose: float = 0.0
    shuffle: float = 0.0


@dataclass
class Chord:
    """Celery's view of a page: it counts endings of messages, whichever they are."""

    size: int
    ended: int = 0


class VirtualBroker:
    """One world's. `tells` whether it says of a message that it has come back, as RabbitMQ does."""

    def __init__(self, chance: random.Random, tell: Callable[[str], None], *, tells: bool) -> None:
        self._chance, self._tell, self.tells = chance, tell, tells
        self._tags = itertools.count()
        self.odds = MessageOdds()
        self.queues: dict[str, deque[Message]] = defaultdict(deque)
        self.unacked: dict[str, dict[int, tuple[str, Message]]] = defaultdict(dict)
        self.chords: dict[str, Chord] = {}

    def publish(self, queue: str, message: Message) -> None:
        copies = 2 if self._chance.random() < self.odds.double else 1
        self.queues[queue].extend([message] * copies)

    def take(self, queue: str, node: str) -> tuple[int, Message] | None:
        """The next message, which is the node's until it acknowledges; some vanish on the way."""
        waiting = self.queues[queue]
        while waiting:
            if self._chance.random() < self.odds.shuffle:
                waiting.rotate(-self._chance.randrange(len(waiting)))
            message = waiting.popleft()
            if self._chance.random() < self.odds.lose:
                self._tell(f"lost {message}")
                continue
            tag = next(self._tags)
            self.unacked[node][tag] = (queue, message)
            return tag, message
        return None

    def acknowledge(self, node: str, tag: int) -> None:
        self.unacked[node].pop(tag, None)

    def restore(self, node: str) -> int:
        """Put a node's messages back; returns how many."""
        taken = self.unacked.pop(node, {})
        for queue, message in taken.values():
            self.queues[queue].appendleft(message._replace(came_back=self.tells))
        return len(taken)

    def double_all(self) -> None:
        for waiting in self.queues.values():
            waiting.extend(list(waiting))

    def ended(self, page: str, body: Message) -> None:
        """One message of a page has ended and counts."""
        chord = self.chords.get(page)
        if chord is None:
            return
        chord.ended += 1
        if chord.ended == chord.size:
            self.publish("control", body)
