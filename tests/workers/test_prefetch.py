"""A queue's messages come as there is room for them, and none of them twice."""

from collections import deque
from types import SimpleNamespace

from dicast.workers.broker.fetch import Prefetch


class Queue:
    """A quorum queue and kombu's consumer of it: sends as many as the newest consumer may have unacknowledged."""

    def __init__(self, messages, on_message):
        self.ready, self.on_message = deque(range(messages)), on_message
        self.limit, self.unacked, self.consuming, self.consumers = 0, set(), False, 0

    def qos(self, prefetch_count, apply_global):
        assert not apply_global, "quorum queues know none"
        self.asked = prefetch_count

    def consume(self):
        self.limit, self.unacked, self.consuming, self.consumers = self.asked, set(), True, self.consumers + 1
        self.send()

    def cancel(self):
        self.consuming = False

    def read_on(self):
        """They come as they are sent here."""

    def send(self):
        while self.consuming and self.ready and len(self.unacked) < self.limit:
            message = self.ready.popleft()
            self.unacked.add(message)
            self.on_message(SimpleNamespace(number=message))

    def ack(self, message):
        self.unacked.discard(message)
        self.send()


class Gate:
    def __init__(self, most):
        self.most, self.held, self.fullest = most, [], 0

    def room(self):
        room = self.most - len(self.held)
        return room if room >= 4 else 0

    def hold(self, message):
        self.held.append(message.number)
        self.fullest = max(self.fullest, len(self.held))


def test_what_waits_is_bounded_whatever_runs_and_all_of_it_comes_once():
    gate = Gate(8)
    queue = Queue(200, gate.hold)
    prefetch = Prefetch(queue, gate.room, queue.read_on)
    running, done = deque(), []
    for _ in range(1000):
        prefetch.refill()
        if len(running) < 40 and gate.held:
            running.append(gate.held.pop(0))
        elif running:
            done.append(running.popleft())
            queue.ack(done[-1])
    assert done == list(range(200))
    assert gate.fullest == 8
    assert queue.consumers <= 200 / 4, "several messages to each new consumer"


def test_a_queue_that_is_empty_is_not_asked_again():
    gate = Gate(8)
    queue = Queue(3, gate.hold)
    prefetch = Prefetch(queue, gate.room, queue.read_on)
    for _ in range(100):
        prefetch.refill()
        gate.held.clear()
    assert queue.consumers == 1
    queue.ready.append(3)
    queue.send()
    assert gate.held == [3]


def test_nothing_is_asked_for_without_room_nor_after_the_end():
    gate = Gate(0)
    queue = Queue(5, gate.hold)
    prefetch = Prefetch(queue, gate.room, queue.read_on)
    prefetch.refill()
    assert queue.consumers == 0
    prefetch.stop()
    gate.most = 8
    prefetch.refill()
    assert (queue.consumers, queue.consuming) == (0, False)
