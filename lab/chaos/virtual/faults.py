"""What can happen to a world besides its odds."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from dicast.app.ledger.keys import LedgerKeys, PageRef
from dicast.app.ledger.records import MessageId, read_lanes
from lab.chaos.virtual.broker import Message
from lab.chaos.virtual.node import VirtualNode
from lab.chaos.virtual.provider import CALL_TIMEOUT_S
from lab.chaos.virtual.scene import Scene


class Faults:
    """Strikes one scene. Each method is a fault: it spoils something now, and heals it by itself."""

    def __init__(self, scene: Scene, chance: random.Random) -> None:
        self._scene, self._world, self._chance = scene, scene.world, chance

    def catalogue(self) -> list[Callable[[], object]]:
        return [
            self.kill, self.kill, self.freeze, self.cut, self.double_all, self.stall_store, self.stall_node,
            self.demote, self.step_clock, self.fill_disk, self.break_pool,
        ]  # fmt: skip

    # ------------------------------------------------------------------ nodes
    def kill(self) -> None:
        """A node dies; often another comes."""
        if self._scene.living():
            victim = self._chance.choice(self._scene.living())
            self._scene.note(f"kill {victim.name}")
            self._scene.count_batches_of(victim)
            victim.kill()
            if self._chance.random() < 0.5 or not self._scene.living():
                self._world.later(self._chance.uniform(0.5, 10), self._scene.bear)

    def freeze(self) -> None:
        """A node stands still, and goes on as if nothing had been."""
        self._freeze(self._chance.choice([1, 5, 16, 20, 60]))

    def stall_node(self) -> None:
        """As a busy machine does it: not long enough for anybody to notice."""
        self._freeze(self._chance.uniform(1, 10))

    def _freeze(self, seconds: float) -> None:
        candidates = [n for n in self._scene.living() if not n.frozen]
        if not candidates:
            return
        victim = self._chance.choice(candidates)
        self._scene.note(f"freeze {victim.name} for {seconds:.1f}")
        victim.frozen = True

        def thaw() -> None:
            victim.frozen = False
            if seconds >= CALL_TIMEOUT_S - 3:  # the deadlines of its calls are over, though answers may have come
                victim.excuse()
            self._world.tell(f"thaw {victim.name}")

        self._world.later(seconds, thaw)

    def cut(self) -> None:
        """A node's connections to the store carry little, and new ones are refused."""
        if self._scene.living():
            victim, seconds = self._chance.choice(self._scene.living()), self._chance.choice([1, 5, 18])
            self._scene.note(f"cut {victim.name} off for {seconds}")
            victim.cut_until = self._world.now + seconds

    def fill_disk(self) -> None:
        """Nodes can keep nothing on disk for a while, and the store is away for a part of that."""
        self._scene.note("disk full")
        for node in self._scene.living():
            node.disk_full = True

        def heal() -> None:
            for node in self._scene.living():
                node.disk_full = False

        self._world.later(self._chance.uniform(5, 15), heal)
        self._world.later(self._chance.uniform(0, 5), self.stall_store)

    # ------------------------------------------------------------------ store and broker
    def stall_store(self) -> None:
        """The store takes connections and commands and answers nobody for 1 to 10 s; then it obeys them all."""
        seconds = self._chance.uniform(1, 10)
        self._scene.note(f"stall store for {seconds:.1f}")
        self._world.stalled_until = self._world.now + seconds

    def demote(self) -> None:
        """A replica becomes primary; connections to the old one stay and are read only."""
        self._scene.note("demote")
        self._world.primary += 1

    def step_clock(self) -> None:
        """The store's clock is set, by up to a minute back, or an hour on."""
        seconds = self._chance.choice([-60, -10, -1, 1, 10, 60, 3600])
        self._scene.note(f"store's clock by {seconds}")
        self._world.wall_step_s += seconds
        self._scene.unequal = True  # leases may end before they are given back

    def double_all(self) -> None:
        """Every waiting message comes twice."""
        self._scene.note("all waiting messages twice")
        self._world.broker.double_all()

    # ------------------------------------------------------------------ pools and jobs
    def break_pool(self) -> None:
        """A pool's circuit breaker is open for a while: what may go elsewhere passes its gate without a lease."""
        pool, seconds = self._chance.choice(self._scene.shape.pools), self._chance.uniform(1, 8)
        self._scene.note(f"breaker of {pool} open for {seconds:.1f}")
        self._scene.govern(pool, breaker="open")
        self._world.later(seconds, lambda: self._scene.govern(pool))

    def cancel(self) -> None:
        """A job is cancelled; sometimes its open calls are cut, too."""
        known = [job for job in self._world.jobs if self._scene.state(job) is not None]
        if not known:
            return
        job_id = self._chance.choice(known)
        self._scene.note(f"cancel {job_id}")
        self._scene.allowed[job_id] = replace(self._scene.allowed[job_id], cancelled=True)
        self._scene.caller.cancel(job_id)
        self._terminate(lambda message: message.args[0] == job_id)

    def cancel_batch(self) -> None:
        """An operator cancels a batch; its units go into a later one."""
        if batches := self._scene.caller.batches():
            batch = self._chance.choice(batches)
            self._scene.note(f"cancel {batch.name}")
            self._scene.caller.cancel_batch(batch.name)

    def revoke(self) -> None:
        """A unit that is in work is revoked, or the batch that it begins; sometimes its call is cut."""
        keys = LedgerKeys(self._world.keys)
        pages = [PageRef.parse(member) for member in self._world.client.zrange(keys.watch, 0, -1)]
        if not pages:
            return
        ref = self._chance.choice(pages)
        first, units = self._world.client.hmget(keys.page(ref), "first", "units")
        if first is None or ref.job not in self._scene.allowed:
            return
        lane = read_lanes(self._world.client.hget(keys.job(ref.job), "lanes"))[ref.lane]
        position = int(first) + self._chance.randrange(int(units))
        token = MessageId(position, batch=lane.grouped and position % lane.stride == 0)
        self._scene.note(f"revoke {ref.name}.{token}")
        allowed = self._scene.allowed[ref.job]
        self._scene.allowed[ref.job] = replace(allowed, errors=allowed.errors | {"cancelled"})
        self._scene.caller.revoke_unit(ref, token)
        self._terminate(lambda message: (*message.args[:4], message.args[4]) == (*ref, str(token)))

    def _terminate(self, is_meant: Callable[[Message], bool]) -> None:
        """Workers hear of it a moment later."""
        if random.Random(f"terminate {self._scene.seed} {self._world.now}").random() < 0.5:
            return
        self._scene.note("and terminate")
        for node in self._scene.living():
            self._world.later(self._world.wire_s(), partial(self._terminate_at, node, is_meant))

    def _terminate_at(self, node: VirtualNode, is_meant: Callable[[Message], bool]) -> None:
        if node.alive and not node.frozen:
            node.terminate(is_meant)

    def heal(self) -> None:
        """From now on nothing new goes wrong; somebody is there."""
        self._world.odds = type(self._world.odds)()
        if not [n for n in self._scene.living() if not n.frozen]:
            self._scene.bear()
