"""Worlds in which something is told in order: settings that change, ids that come again, files that go, a store that
forgets. Each is a story, told anew with each seed."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace

import orjson

from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.plan import STANDARD
from dicast.app.ledger.records import JobState
from dicast.workers.store.connection import StoreClient
from lab.chaos.virtual.books import Allowed
from lab.chaos.virtual.faults import Faults
from lab.chaos.virtual.jobs import SimJob, a_job
from lab.chaos.virtual.node import Shape, VirtualNode
from lab.chaos.virtual.scene import Scene, SeedResult
from lab.chaos.virtual.world import Answers, Odds, VirtualPlace

LOOK_S = 0.5
ENDS_WITHIN_S = 60.0
"""A cancelled job, whoever has died meanwhile."""


class Story(Scene):
    """Two workers on one or two pools, and what `tell` makes of them. `over` says when nothing more will happen."""

    pools: tuple[str, ...] = ("p", "q")
    known: tuple[str, ...] = ()
    """The pools that the first workers know, if not all."""
    answers = Answers()

    def __init__(self, client: StoreClient, seed: int) -> None:
        self.chance = random.Random(f"{type(self).__name__} {seed}")
        super().__init__(
            client, seed, limit=self.chance.randint(1, 4), odds=Odds(answers=self.answers),
            tells=self.chance.random() < 0.3, shape=Shape(self.pools, page_max=self.chance.choice([2, 4, 100])),
        )  # fmt: skip
        self.over = False
        self.first = Shape(self.known or self.pools, page_max=self.shape.page_max)
        for _ in range(2):
            self.bear(self.first)
        self.tell()

    def tell(self) -> None:
        raise NotImplementedError

    def a_job(self, job_id: str = "j", text: str = "", pools: tuple[str, ...] = (), most_items: int = 5) -> SimJob:
        return a_job(self.chance, job_id, list(pools or self.pools), text=text, most_items=most_items)

    def at(self, when: float, act: Callable[[], object]) -> None:
        self.world.at(when, act)

    def when(self, ready: Callable[[], bool], act: Callable[[], object]) -> None:
        """Act as soon as it is so, and not before."""
        if ready():
            act()
        else:
            self.world.later(LOOK_S, lambda: self.when(ready, act))

    def end(self) -> None:
        self.over = True

    def replace_workers(self, shape: Shape, limit: int | None = None) -> None:
        """One after the other stops at once and comes again with other settings."""

        def restart() -> None:
            for node in self.living():
                if node.shape != shape or node.frozen_limit != (limit or node.frozen_limit):
                    self.note(f"kill {node.name}, another comes with {', '.join(shape.pools)}, limit {limit}")
                    node.kill()
                    born = self.bear(shape)
                    born.frozen_limit = limit or born.frozen_limit
                    self.world.later(self.chance.uniform(0.2, 3), restart)
                    return

        restart()

    def run(self) -> SeedResult:  # type: ignore[override]
        return super().run(lambda: self.over)


class PoolGone(Story):
    """A pool leaves the configuration while jobs want it: their units are told as rejected, others' work goes on."""

    def tell(self) -> None:
        self.submit(self.a_job("j"))
        self.submit(self.a_job("k", pools=("p",)))
        self.allowed["j"] = Allowed(errors=frozenset({"rejected"}))
        self.at(self.chance.uniform(0, 3), lambda: self.replace_workers(Shape(("p",), page_max=self.shape.page_max)))
        self.at(20, self.end)


class PoolNew(Story):
    """A caller's configuration has a pool that its workers get later."""

    known = ("p",)

    def tell(self) -> None:
        self.submit(self.a_job("j"))
        self.submit(self.a_job("k", pools=("p",)))
        self.allowed["j"] = Allowed(errors=frozenset({"rejected"}))
        self.at(self.chance.uniform(1, 20), lambda: self.replace_workers(self.shape))
        self.at(30, self.end)


class LimitChanged(Story):
    """Workers come again with another limit; what runs keeps its own, what comes later has the new one."""

    def tell(self) -> None:
        self.submit(self.a_job("j"))
        limit = self.chance.randint(1, 4)
        self.world.limit = max(self.world.limit, limit)
        self.at(self.chance.uniform(0, 3), lambda: self.replace_workers(self.shape, limit))
        self.expect(later := self.a_job("k"))
        self.at(self.chance.uniform(3, 8), lambda: self.submit(later))
        self.at(10, self.end)


class FileGone(Story):
    """The file of a job's items vanishes, or becomes another, before all of it was planned."""

    def tell(self) -> None:
        folder = self.world.folder
        while not (path := folder / "j.jsonl").exists():
            job = a_job(self.chance, "j", ["p"], folder=folder, most_items=12)
        self.submit(job)
        self.submit(self.a_job("k", pools=("p",)))
        self.allowed["j"] = Allowed(cancelled=True, errors=frozenset({"rejected", "internal"}))

        def spoil() -> None:
            self.note("the file goes")
            if self.chance.random() < 0.5:
                path.unlink()
            else:
                path.write_bytes(path.read_bytes().replace(b"JOB j;", b"JOB l;"))

        self.at(self.chance.uniform(0, 2), spoil)
        self.at(10, self.end)


class SameIdAfterFlush(Story):
    """The store is emptied while a job runs; it is recorded as lost, and its id is used again by another job."""

    def tell(self) -> None:
        self.submit(self.a_job("j", text="old"))
        self.at(self.chance.uniform(0.1, 6), self._flush)

    def _flush(self) -> None:
        self.note("flush")
        ended = self.state("j") in (JobState.COMPLETED, None)
        self.world.flush()
        for pool in self.pools:
            self.govern(pool)
        self.unequal = True
        self.when(lambda: ended or self.state("j") is JobState.LOST, self._again)

    def _again(self) -> None:
        self.world.forget("j")
        self.submit(self.a_job("j", text="new"))
        self.allowed["j"] = Allowed(late=True)
        self.end()


class SameIdAfterRetention(Story):
    """A job has ended and its record is forgotten; the same processes get another one of its id."""

    def tell(self) -> None:
        self.submit(self.a_job("j", text="old"))
        self.when(self.at_rest, self._again)

    def _again(self) -> None:
        self.note("a week later")
        self.world.forget("j")
        self.world.client.delete(*self.world.client.keys(self.world.keys.at("job", "j") + "*"))
        self.submit(self.a_job("j", text="new"))
        self.end()


class LostWrites(Story):
    """Another server takes over, which lacks the last writes."""

    answers = Answers(refuse=0.1, spoil=0.1)

    def tell(self) -> None:
        self.submit(self.a_job("j", most_items=8))
        self.allowed["j"] = Allowed(again=True)
        self.unequal = True
        kept_at = self.chance.uniform(0.5, 5)
        self.at(kept_at, self._keep)
        self.at(kept_at + self.chance.uniform(0.05, 3), self._fall_back)

    def _keep(self) -> None:
        self._kept = self.world.kept()

    def _fall_back(self) -> None:
        self.note("another server without the last writes")
        self.world.fall_back(self._kept)
        self.end()


class TwoHeirs(Story):
    """A worker dies while the store is away and its answers lie on disk; two others find them at once."""

    pools = ("p",)

    def tell(self) -> None:
        self.submit(self.a_job("j", most_items=8))
        self.bear()
        self.at(self.chance.uniform(0.5, 4), self._away)

    def _away(self) -> None:
        faults = Faults(self, self.chance)
        faults.stall_store()
        self.world.stalled_until = self.world.now + self.chance.uniform(6, 12)
        dies_at = self.world.stalled_until - self.chance.uniform(0.1, 2)
        self.at(dies_at, faults.kill)
        self.at(dies_at, self.end)


class HalfDisk(Story):
    """The store is away, and the disk takes only some of the answers; then a worker stops for good."""

    pools = ("p",)

    def tell(self) -> None:
        self.submit(self.a_job("j", most_items=8))
        faults = Faults(self, self.chance)
        self.at(self.chance.uniform(0.5, 4), faults.fill_disk)
        self.at(self.chance.uniform(4, 10), faults.kill)
        self.at(10, faults.heal)
        self.at(11, self.end)


class AtMostOnce(Story):
    """No second call where the first may have been paid for, and a worker dies."""

    answers = Answers(refuse=0.2, spoil=0.2, hang=0.1)

    def tell(self) -> None:
        job = self.a_job("j")
        self.submit(replace(job, job=EvaluationJob.model_validate({**job.job.model_dump(), "spend": "at_most_once"})))
        unsure = {"outcome_unknown", "malformed"}
        self.allowed["j"] = Allowed(errors=frozenset(unsure))
        faults = Faults(self, self.chance)
        if self.chance.random() < 0.5:
            self.at(self.chance.uniform(0.2, 5), faults.kill)
        self.at(6, self.end)


class ClockBack(Story):
    """The store's clock is set back by an hour: what it holds for some seconds, it holds for an hour now."""

    def tell(self) -> None:
        self.submit(self.a_job("j", most_items=8))
        self.at(self.chance.uniform(0.5, 3), self._set)

    def _set(self) -> None:
        self.note("store's clock back by an hour")
        self.world.wall_step_s -= 3600
        self.expect(later := self.a_job("k"))
        self.submit(later, told=False)
        self.end()


class Unfinishable(Story):
    """When a job is to be finished a page is damaged, or the disk full until it is cancelled; then it goes on. Or a
    file of somebody else's lies among the pages, which is in nobody's way."""

    pools = ("p",)

    def tell(self) -> None:
        self.submit(self.a_job("j", most_items=8))
        self.allowed["j"] = Allowed(again=True, errors=frozenset({"cancelled"}))
        self.way = self.chance.choice(["full", "damaged", "foreign"])
        self.full = True
        for node in self.living():
            node.gatherer.full = lambda: self.full
        self.when(lambda: self.state("j") is JobState.FINISHING, self._spoil)

    def _spoil(self) -> None:
        self.note(self.way)
        parts = sorted((self.world.folder / "results" / "j" / "parts").rglob("*.jsonl"))
        if self.way == "foreign":
            parts[0].with_name("notes.jsonl").write_text("not a page")
        elif self.way == "damaged":
            part = self.chance.choice(parts)
            part.write_bytes(part.read_bytes()[: -self.chance.randint(1, 200)])
        self.full = self.way == "full"
        if self.full:
            self.world.later(self.chance.uniform(3, 40), lambda: self.caller.cancel("j"))
        self.when(self._ended, self._again)

    def _ended(self) -> bool:
        return (state := self.state("j")) is not None and state.ended and self.at_rest()

    def _again(self) -> None:
        self.full = False
        if self.state("j") is JobState.CANCELLED:
            self.resume("j")
        self.end()


class Ungatherable(Story):
    """For a time no disk takes a page: until it is well again, or the job is cancelled, or given up; a worker may die
    meanwhile. Then the job goes on, and what had a score is not called again."""

    pools = ("p",)
    given_up_ms = 30_000

    def tell(self) -> None:
        self.submit(self.a_job("j", most_items=8))
        self.allowed["j"] = Allowed(again=True, errors=frozenset({"cancelled"}))
        self.full, self.calls_before = False, 0
        self.scored = set[VirtualPlace]()
        self.at(self.chance.uniform(0, 3), self._fill)
        if self.chance.random() < 0.5:
            faults = Faults(self, self.chance)
            self.at(self.chance.uniform(1, 30), faults.kill)
            self.at(self.chance.uniform(1, 40), lambda: self.bear(self.first))

    def bear(self, shape: Shape | None = None) -> VirtualNode:
        node = super().bear(shape)
        node.gatherer.takes_no_page = lambda: self.full
        node.ledger.intervals = replace(STANDARD, disk_ms=self.given_up_ms)
        return node

    def _fill(self) -> None:
        self.full, way = True, self.chance.choice(["heals", "cancelled", "given up"])
        self.note(f"disk takes no page, {way}")
        if way == "heals":
            self.world.later(self.chance.uniform(1, 40), self._heal)
        elif way == "cancelled":
            self.world.later(self.chance.uniform(1, 40), lambda: self.caller.cancel("j"))
        self.when(self._ended, self._again)

    def _heal(self) -> None:
        self.full = False

    def _ended(self) -> bool:
        return (state := self.state("j")) is not None and state.ended and self.at_rest()

    def _again(self) -> None:
        self._heal()
        self.calls_before = len(self.world.calls)
        for page in self.world.pages.values():
            for opinion in (orjson.loads(text)["opinion"] for text in page.values()):
                if opinion.get("score") is not None:
                    call = self.world.calls[int(re.findall(r"\d+", opinion["argument"])[0])]
                    self.scored |= {p for p in call.places if f"d{p.dimension}" == opinion["criterion_id"]}
        if self.state("j") is JobState.CANCELLED:
            self.resume("j")
        self.end()

    def judge(self) -> None:
        super().judge()
        called = {place for call in self.world.calls[self.calls_before :] for place in call.places}
        if again := called & self.scored:
            self.world.fail(f"scored units are kept: {sorted(again)[:3]} were called again")


class CancelledUnserved(Story):
    """A job is cancelled while nobody serves a pool of its; it ends, and goes on when somebody does."""

    def tell(self) -> None:
        self.submit(self.a_job("j", most_items=8))
        self.allowed["j"] = Allowed(again=True, errors=frozenset({"cancelled", "rejected"}))
        gone_at = self.chance.uniform(0, 3)
        self.at(gone_at, lambda: self.replace_workers(Shape(("p",), page_max=self.shape.page_max)))
        self.at(gone_at + self.chance.uniform(0, 20), self._cancel)

    def _cancel(self) -> None:
        self.note("cancel j")
        self.caller.cancel("j")
        self.at(self.world.now + ENDS_WITHIN_S, self._again)

    def _again(self) -> None:
        state = self.state("j")
        if state is None or not state.ended:
            self.world.fail(f"one outcome: {state} so long after it was cancelled")
        self.bear(self.shape)
        if state is JobState.CANCELLED:
            self.resume("j")
        self.end()


STORIES: dict[str, type[Story]] = {
    story.__name__: story
    for story in (
        PoolGone, PoolNew, LimitChanged, FileGone, SameIdAfterFlush, SameIdAfterRetention, LostWrites, TwoHeirs,
        HalfDisk, AtMostOnce, ClockBack, Unfinishable, Ungatherable, CancelledUnserved,
    )
}  # fmt: skip
