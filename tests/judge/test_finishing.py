"""A job whose finishing fails for a lasting reason ends with that reason, keeps its scored units, can be resumed."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dicast.app.domain.opinion import FailureKind
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.ledger import Ledger
from dicast.app.ledger.records import JobState
from dicast.app.ledger.troubles import Troubles
from dicast.app.pipeline.gather import Gatherer
from dicast.app.pipeline.job_faults import DISK_TRIES, TRIES, JobFaults
from dicast.app.pipeline.plan import Lookahead, Planner
from dicast.app.pipeline.start import Preparation
from dicast.app.providers.base import ProviderFailure
from dicast.app.reports import files
from dicast.app.reports.files import read_opinions, read_report
from tests.judge.desk import Scripted, failing, good
from tests.ledger.bench import KEYS, a_job

ITEMS, UNITS = 3, 6


class Stage:
    """A job of three pages that are judged and gathered, but for what a test does to its files; its ends are told."""

    def __init__(self, bench: Any, desk: Any, folder: Path) -> None:
        self.bench, self.folder, self.make = bench, folder, desk
        self.desk = desk(Scripted())
        self.results = folder / "results"
        self.told: list[str] = []
        self.one, self.two = (self.gatherer(ledger, self.results) for ledger in (bench.one, bench.two))

    def gatherer(self, ledger: Ledger, results: Path) -> Gatherer:
        faults = JobFaults(Troubles(self.bench.asyncs, KEYS), self.bench.client)
        return Gatherer(ledger, str(results), self.desk.pools, self.desk.asking, self, faults)

    def announce(self, job_id: str, end: Any, continuations: Any) -> None:
        self.told.append(end.report["status"])

    async def judged(self, gather: bool = True) -> list[PageRef]:
        self.bench.submit(a_job(items=ITEMS))
        await self.prepared()
        await self.bench.one.start("j", 5)
        refs = [PageRef("j", self.bench.incarnation("j"), 0, page) for page in range(ITEMS)]
        items = dict(enumerate(await self.bench.one.items("j", range(ITEMS))))
        for ref in refs:
            rest = "" if ref.page == ITEMS - 1 else "{}"
            await self.bench.one.open_page(ref, 2 * ref.page, 2, rest, 1, {ref.page: items[ref.page]})
            await self.bench.one.published(ref)
        for ref in refs:
            for position in (2 * ref.page, 2 * ref.page + 1):
                assert (await self.desk.do(ref, position)).counts
            if gather:
                found = await self.one.gather(ref)
        if gather:
            assert found.finish
        return refs

    async def prepared(self) -> None:
        job = await self.bench.one.job("j")
        await Preparation(self.bench.one, self.bench.client, str(self.results)).prepare(job)

    @property
    def parts(self) -> list[Path]:
        return sorted((self.results / "j" / "parts" / self.bench.incarnation("j")).glob("*"))

    async def later(self) -> None:
        """Eleven seconds, for the store."""
        now = int(await self.bench.asyncs.hget(KEYS.clock, "now") or 0)
        await self.bench.asyncs.hset(KEYS.clock, mapping={"now": now + 11_000, "seen": 0})

    @property
    def status(self) -> Any:
        return self.bench.client.status("j")

    async def failing(self, times: int, *gatherers: Gatherer) -> None:
        for n in range(times):
            await self.later()
            assert not await (gatherers or (self.one,))[n % len(gatherers or (1,))].finish("j")
            assert self.status.state is JobState.FINISHING
            assert self.status.waits_for

    async def published_when_resumed(self) -> list[int]:
        """The units that are called when the job goes on."""
        assert self.bench.client.resume("j") is JobState.CANCELLED
        await self.prepared()
        job = await self.bench.one.job("j")
        await self.bench.one.start("j", 5, job.resumed)
        published: list[int] = []

        async def page(_: Any, page: Any) -> None:
            published.extend(token.position for token in page.tokens)

        async def number(_: str) -> int:
            return UNITS

        planner = Planner(
            self.bench.one,
            SimpleNamespace(limit=number, model=str),
            self.desk.asking,
            Lookahead(5, 2),
            str(self.results),
        )  # type: ignore[arg-type]
        assert not await planner.plan(job, 0, SimpleNamespace(page=page))  # type: ignore[arg-type]
        return published

    def scores(self) -> list[tuple[str, str]]:
        return [(o.item_id, o.criterion_id) for o in read_opinions(self.results, "j") if o.score is not None]


@pytest.fixture
def stage(bench: Any, desk: Any, tmp_path: Path) -> Stage:
    return Stage(bench, desk, tmp_path)


def units(*items: int) -> list[tuple[str, str]]:
    return [(f"i{item}", f"d{dimension}") for item in items for dimension in range(2)]


async def test_a_file_of_somebody_elses_among_the_pages_is_in_nobodys_way(stage: Stage) -> None:
    await stage.judged()
    foreign = stage.parts[0].with_name("notes of mine.jsonl")
    foreign.write_text("not a page\n")
    assert await stage.one.finish("j")
    assert (stage.status.state, stage.scores()) == (JobState.COMPLETED, units(0, 1, 2))
    assert foreign.read_text() == "not a page\n"
    assert not [path for path in stage.parts if path != foreign]


def cut(path: Path, by: int) -> None:
    path.write_bytes(path.read_bytes()[:-by])


@pytest.mark.parametrize("damage", ["last line", "newline", "half", "counts", "empty", "foreign job"])
async def test_a_page_that_is_damaged_costs_its_own_units_alone(stage: Stage, damage: str) -> None:
    """The job stood at `finishing` for ever, and nothing said why."""
    await stage.judged()
    page = stage.parts[1]
    whole = page.read_bytes()
    lines = whole.splitlines(keepends=True)
    if damage == "foreign job":
        page.write_bytes(whole.replace(b'"judge":"a0"', b'"judge":"zz"'))
    else:
        cut(
            page,
            {"last line": 40, "newline": 1, "half": len(lines[-1]), "counts": len(whole) - 9}.get(damage, len(whole)),
        )
    await stage.failing(TRIES - 1)
    await stage.later()
    assert await stage.one.finish("j"), "the fifth try gives it up"
    status = stage.status
    assert (status.state, stage.told) == (JobState.CANCELLED, ["cancelled"])
    assert "its results cannot be put together" in status.why
    assert str(page) in status.why
    report = read_report(stage.results, "j")
    assert (report.status, report.reason) == ("cancelled", status.why)
    kept = {"last line": 1, "newline": 1, "half": 1}.get(damage, 0)
    assert stage.scores() == [*units(0), *units(1)[:kept], *units(2)]
    assert (report.scored, report.missing) == (4 + kept, 2 - kept)
    assert (status.done, status.counters["scored"]) == (4 + kept, 4 + kept), "the others are called again"
    assert [path.name for path in (stage.results / "j" / "damaged").iterdir()] == [page.name]
    assert await stage.published_when_resumed() == [2, 3][kept:]


async def test_a_lock_that_cannot_be_written_costs_a_job_no_report(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise ValueError("no lock")

    monkeypatch.setattr("dicast.app.pipeline.gather.write_lock", refuse)
    await stage.judged()
    await stage.failing(TRIES - 1)
    await stage.later()
    assert await stage.one.finish("j")
    report = read_report(stage.results, "j")
    assert (report.status, report.scored, stage.scores()) == ("cancelled", 6, units(0, 1, 2))
    assert "no lock" in stage.status.why


async def test_results_that_two_workers_do_not_share_end_the_job_and_are_called_no_more_than_need_be(
    stage: Stage, tmp_path: Path
) -> None:
    """Neither has all of them, and each says something else; the one that failed keeps the other from nothing."""
    refs = await stage.judged(gather=False)
    stage.two = stage.gatherer(stage.bench.two, tmp_path / "another")
    await stage.one.gather(refs[0])
    await stage.two.gather(refs[1])
    assert (await stage.one.gather(refs[2])).finish
    await stage.failing(TRIES - 1, stage.one, stage.two)
    assert "6 units, but" in stage.status.waits_for
    await stage.later()
    assert await stage.one.finish("j")
    assert (stage.status.state, stage.scores()) == (JobState.CANCELLED, units(0, 2))
    assert await stage.published_when_resumed() == [2, 3]


def counts(stage: Stage) -> tuple[int, int, int, int]:
    """What the report of an ended job says: units scored, failed and without an opinion, and the scores of its
    dimensions."""
    report = stage.status.report
    known = sum(dimension["scores"]["n"] for dimension in report["by_dimension"])
    assert report["scored"] + report["failed"] == stage.status.done
    return report["scored"], report["failed"], report["missing"], known


def full(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[bool]:
    """The disk takes no file of these names, nor any where none is said, while the list says so."""
    is_full, replacing = [True], files.replacing

    def refusing(path: Path, **options: Any) -> Any:
        if is_full[0] and (not names or path.name in names):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return replacing(path, **options)

    for module in ("files", "stored_items"):
        monkeypatch.setattr(f"dicast.app.reports.{module}.replacing", refusing)
    return is_full


async def test_a_full_disk_is_waited_for(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    await stage.judged()
    is_full = full(monkeypatch)
    await stage.failing(2 * TRIES)
    assert stage.status.waits_for.startswith("its results cannot be written: ")
    assert stage.status.waits_for.endswith("items.jsonl: No space left on device")
    is_full[0] = False
    assert await stage.two.finish("j"), "another node may do it, though the one that failed lives"
    assert (stage.status.state, stage.status.why, stage.scores()) == (JobState.COMPLETED, None, units(0, 1, 2))


@pytest.mark.parametrize("how", ["cancel", "an hour"])
@pytest.mark.parametrize("names", [(), ("items.jsonl",), ("report.json",)])
async def test_a_job_that_nobody_can_finish_is_cancelled_and_comes_back_without_a_call(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, how: str, names: tuple[str, ...]
) -> None:
    """`jobs cancel` did nothing; what lies in parts, and the items in the store, outlast the job's end."""
    await stage.judged()
    is_full = full(monkeypatch, *names)
    if how == "cancel":
        await stage.failing(1)
        assert stage.bench.client.cancel("j") == (JobState.FINISHING, True)
        assert await stage.one.finish("j")
    else:
        await stage.failing(DISK_TRIES - 1)
        await stage.later()
        assert await stage.one.finish("j")
    assert (stage.status.state, stage.told) == (JobState.CANCELLED, ["cancelled"])
    assert "No space left on device" in stage.status.why
    assert stage.status.report["reason"] == stage.status.why
    assert counts(stage) == (UNITS, 0, 0, UNITS)
    is_full[0] = False
    assert await stage.published_when_resumed() == []
    for page in range(ITEMS, 2 * ITEMS):
        found = await stage.two.gather(PageRef("j", stage.bench.incarnation("j"), 0, page))
    assert found.finish
    assert await stage.one.finish("j")
    assert (stage.status.state, stage.scores()) == (JobState.COMPLETED, units(0, 1, 2))
    assert stage.status.report["missing"] == 0
    assert not stage.bench.redis.exists(stage.bench.one.keys.items("j"))
    assert (stage.results / "j" / "items.jsonl").exists()


async def test_a_folder_that_cannot_be_read_leaves_what_the_ledger_counted(stage: Stage) -> None:
    await stage.judged()
    stage.results.rename(stage.folder / "elsewhere")
    stage.results.write_text("a file in the way")
    stage.bench.client.cancel("j")
    await stage.failing(TRIES - 1)
    stage.bench.client.cancel("j")
    assert await stage.one.finish("j")
    assert counts(stage) == (UNITS, 0, 0, 0)
    usage = stage.status.report["input_tokens"], stage.status.report["output_tokens"]
    assert usage == (70 * UNITS, 30 * UNITS)
    stage.results.unlink()
    (stage.folder / "elsewhere").rename(stage.results)
    assert await stage.published_when_resumed() == []


async def test_units_without_a_score_are_told_of_as_such(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """With their errors, as in the report of a job that has its files."""
    refused = failing(ProviderFailure(FailureKind.REJECTED, "no such model", status_code=404))
    stage.desk = stage.make(Scripted(refused, good))
    await stage.judged()
    full(monkeypatch)
    await stage.failing(1)
    stage.bench.client.cancel("j")
    assert await stage.one.finish("j")
    assert counts(stage) == (UNITS - 1, 1, 0, UNITS - 1)
    (errors,) = stage.status.report["errors"]
    assert (errors["kind"], errors["count"], errors["examples"][0]["item_id"]) == ("rejected", 1, "i0")


async def test_a_job_that_was_given_up_before_has_five_tries_to_end(stage: Stage) -> None:
    """Its folder cannot be made: nothing is lost when it ends without one."""
    stage.results.write_text("a file in the way")
    stage.bench.submit(a_job(items=ITEMS))
    stage.bench.client.cancel("j", "NotADirectoryError: results")
    await stage.failing(TRIES - 1)
    await stage.later()
    assert await stage.one.finish("j")
    assert (stage.status.state, stage.status.why) == (JobState.CANCELLED, "NotADirectoryError: results")
    stage.results.unlink()
    assert (await stage.published_when_resumed())[:1] == [0]


async def test_what_a_job_had_stays_when_it_is_cancelled_before_it_goes_on(stage: Stage) -> None:
    """The report of nothing took its place."""
    await stage.judged()
    cut(stage.parts[2], 40)
    await stage.failing(1)
    stage.bench.client.cancel("j")
    assert await stage.one.finish("j")
    before = stage.scores()
    assert before == [*units(0), *units(1), units(2)[0]]
    for state in ("resumed", "resumed and prepared"):
        stage.bench.client.resume("j")
        if state != "resumed":
            await stage.prepared()
        assert stage.bench.client.cancel("j") == (JobState.SUBMITTED, True)
        assert await stage.one.finish("j")
        assert (stage.status.state, stage.scores(), stage.status.report["scored"]) == (JobState.CANCELLED, before, 5)
        (listed,) = stage.bench.client.jobs()
        assert (listed.done, listed.counters["scored"], listed.counters["failed"]) == (5, 5, 0)
    assert await stage.published_when_resumed() == [5]


async def test_a_second_run_that_could_not_be_finished_is_put_together_with_the_first(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.judged()
    stage.parts[0].unlink()
    await stage.failing(1)
    stage.bench.client.cancel("j")
    assert await stage.one.finish("j")
    assert stage.scores() == units(1, 2)
    assert await stage.published_when_resumed() == [0, 1]
    incarnation = stage.bench.incarnation("j")
    stage.bench.client.cancel("j")
    first = PageRef("j", incarnation, 0, ITEMS)
    for position in (0, 1):
        stage.desk.jobs._jobs.clear()
        await stage.desk.do(first, position)
    for page in range(ITEMS, 2 * ITEMS):
        found = await stage.two.gather(first._replace(page=page))
    assert found.finish
    is_full = full(monkeypatch)
    await stage.failing(1)
    stage.bench.client.cancel("j")
    assert await stage.one.finish("j")
    assert counts(stage)[:3] == (4, 2, 0), "each unit once: of the run that is over, and else of the one before"
    is_full[0] = False
    assert len(stage.parts) == ITEMS
    assert await stage.published_when_resumed() == [0, 1], "what was scored in either run is not called again"
