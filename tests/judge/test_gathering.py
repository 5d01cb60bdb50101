"""A job whose pages cannot be written for a lasting reason ends with that reason, keeps its scored units, can be
resumed: their only place is the store until a disk takes them."""

from __future__ import annotations

import pytest

from dicast.app.domain.plan import STANDARD, Intervals
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.records import JobState
from dicast.app.pipeline.gather import Gatherer, GatherResult
from dicast.app.pipeline.job_faults import TRIES
from dicast.app.reports.files import read_report
from tests.judge.test_finishing import ITEMS, UNITS, Stage, counts, full, stage, units

__all__ = ["stage"]

LATER_MS = 11_000
TRIES_WITHIN = (STANDARD.disk_ms - 120_000) // LATER_MS
"""Tries, one each eleven seconds, that take less than an hour, also on a machine that takes two minutes for them."""


async def past_the_hour(stage: Stage) -> None:
    """Let the rest of the hour pass."""
    for _ in range(20):
        await stage.later()


async def failing(stage: Stage, ref: PageRef, times: int, *gatherers: Gatherer) -> None:
    """Nothing follows from these tries but that those who watch the job know why."""
    for n in range(times):
        await stage.later()
        assert await (gatherers or (stage.one,))[n % len(gatherers or (1,))].gather(ref) == GatherResult()
        assert stage.status.state in (JobState.RUNNING, JobState.CANCELLING)
        assert stage.status.waits_for


async def gathered(stage: Stage, refs: list[PageRef]) -> None:
    """All of them are closed, wherever their results are."""
    for ref in refs:
        found = await stage.two.gather(ref)
    assert found.finish


async def ended(stage: Stage) -> None:
    """A cancelled job that is finishing, however often that fails."""
    for _ in range(TRIES):
        await stage.later()
        if await stage.one.finish("j"):
            break
    assert (stage.status.state, stage.told) == (JobState.CANCELLED, ["cancelled"])


async def goes_on_without_a_call(stage: Stage) -> None:
    assert await stage.published_when_resumed() == []
    incarnation = stage.bench.incarnation("j")
    await gathered(stage, [PageRef("j", incarnation, 0, page) for page in range(ITEMS, 2 * ITEMS)])
    assert await stage.one.finish("j")
    assert (stage.status.state, stage.scores()) == (JobState.COMPLETED, units(0, 1, 2))
    assert stage.status.report["missing"] == 0
    assert not stage.bench.redis.exists(stage.bench.one.keys.kept("j"))


async def test_a_full_disk_is_waited_for_by_whoever_gathers(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    refs = await stage.judged(gather=False)
    is_full = full(monkeypatch)
    await failing(stage, refs[0], 20 * TRIES, stage.one, stage.two)
    assert stage.status.state is JobState.RUNNING
    assert stage.status.waits_for.startswith("its results cannot be written: ")
    assert stage.status.waits_for.endswith("0000000000~0.jsonl: No space left on device")
    is_full[0] = False
    await gathered(stage, refs)
    assert await stage.one.finish("j")
    assert (stage.status.state, stage.status.why, stage.scores()) == (JobState.COMPLETED, None, units(0, 1, 2))


@pytest.mark.parametrize("how", ["cancel", "an hour"])
@pytest.mark.parametrize("names", [(), tuple(f"{page:010}~0.jsonl" for page in range(ITEMS))])
async def test_a_job_whose_pages_no_disk_takes_is_cancelled_and_comes_back_without_a_call(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, how: str, names: tuple[str, ...]
) -> None:
    """It waited without end, with its reason told; what `jobs cancel` had said came to nothing."""
    refs = await stage.judged(gather=False)
    is_full = full(monkeypatch, *names)
    if how == "cancel":
        await failing(stage, refs[0], 1)
        assert stage.bench.client.cancel("j", "it has no room") == (JobState.RUNNING, False)
        assert not (await stage.one.gather(refs[0])).finish
    else:
        await failing(stage, refs[0], TRIES_WITHIN)
        await past_the_hour(stage)
        assert not (await stage.one.gather(refs[0])).finish
    assert stage.status.state is JobState.CANCELLING
    assert stage.bench.redis.scard(stage.bench.one.keys.pages("j")) == ITEMS - 1
    await gathered(stage, refs[1:])
    await ended(stage)
    assert ("no room" if how == "cancel" else "No space left on device") in stage.status.why
    assert stage.status.report["reason"] == stage.status.why
    assert counts(stage) == (UNITS, 0, 0, UNITS)
    assert not (stage.results / "j" / "report.json").exists(), "what it has is not in there"
    kept, job = stage.bench.one.keys.kept("j"), stage.bench.one.keys.job("j")
    assert abs(stage.bench.redis.ttl(kept) - stage.bench.redis.ttl(job)) <= 1, "as long as its record"
    is_full[0] = False
    await goes_on_without_a_call(stage)


async def test_a_disk_that_is_back_before_the_job_has_ended_takes_all_of_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    refs = await stage.judged(gather=False)
    await stage.one.gather(refs[1])
    is_full = full(monkeypatch)
    await failing(stage, refs[0], TRIES_WITHIN)
    await past_the_hour(stage)
    await stage.one.gather(refs[0])
    is_full[0] = False
    await gathered(stage, refs[2:])
    assert await stage.two.finish("j")
    assert (stage.status.state, stage.scores()) == (JobState.CANCELLED, units(0, 1, 2))
    report = read_report(stage.results, "j")
    assert (report.scored, report.missing, "No space left" in str(report.reason)) == (6, 0, True)
    assert not stage.bench.redis.exists(stage.bench.one.keys.kept("j"))
    await goes_on_without_a_call(stage)


async def test_only_tries_between_which_no_page_was_written_count(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One worker's disk is full, and the others' is not: the job gets on."""
    refs = await stage.judged(gather=False)
    is_full = full(monkeypatch)
    for ref in refs[:2]:
        await failing(stage, ref, TRIES_WITHIN)
        is_full[0] = False
        assert not (await stage.two.gather(ref)).finish
        is_full[0] = True
    await failing(stage, refs[2], TRIES_WITHIN)
    assert stage.status.state is JobState.RUNNING


async def test_failures_of_a_moment_are_one_try(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the disk is away: many pages fail together."""
    refs = await stage.judged(gather=False)
    full(monkeypatch)
    stage.bench.one.intervals = stage.bench.two.intervals = Intervals(disk_ms=0)
    for _ in range(3):
        for ref in refs:
            assert await stage.one.gather(ref) == GatherResult()
    assert stage.status.state is JobState.RUNNING
    assert stage.bench.redis.hget(stage.bench.one.keys.job("j"), "gather_tries") == "1"


@pytest.mark.parametrize("text", ["no JSON", "{}", '{"opinion": 7}'])
async def test_a_result_that_cannot_be_read_costs_its_own_unit_alone(stage: Stage, text: str) -> None:
    """Each try failed in a task that nobody waited for, and nothing said why the job stood still."""
    refs = await stage.judged(gather=False)
    page = stage.bench.one.keys.page(refs[1])
    stage.bench.redis.hset(page, "r:2", f";{text if text[0] == '{' else '{' + text}")
    await failing(stage, refs[1], TRIES - 1)
    assert "cannot be put together" in stage.status.waits_for
    await stage.later()
    assert not (await stage.one.gather(refs[1])).finish
    assert (stage.status.state, stage.bench.redis.exists(page)) == (JobState.CANCELLING, 0)
    await gathered(stage, [refs[0], refs[2]])
    await ended(stage)
    assert stage.scores() == [*units(0), units(1)[1], *units(2)]
    assert await stage.published_when_resumed() == [2]


async def test_what_the_store_keeps_stays_when_the_disk_is_full_again_at_the_resumption(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    refs = await stage.judged(gather=False)
    is_full = full(monkeypatch)
    stage.bench.client.cancel("j")
    await gathered(stage, refs)
    await ended(stage)
    for _ in range(2):
        assert stage.status.report["scored"] == UNITS, "though its ledger counts anew"
        stage.told.clear()
        stage.bench.client.resume("j")
        assert stage.bench.redis.ttl(stage.bench.one.keys.kept("j")) == -1
        with pytest.raises(OSError, match="No space left"):
            await stage.prepared()
        stage.bench.client.cancel("j", "OSError: no space")
        await ended(stage)
    is_full[0] = False
    await goes_on_without_a_call(stage)


async def test_whoever_dies_while_kept_pages_are_written_leaves_them_to_the_next(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of them is on disk and in the store then; whoever is late finds that the job has gone on."""
    refs = await stage.judged(gather=False)
    is_full = full(monkeypatch)
    stage.bench.client.cancel("j")
    await gathered(stage, refs)
    await ended(stage)
    is_full[0] = False
    stage.bench.client.resume("j")

    async def dies(_: PageRef) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(stage.bench.one, "forget_kept", dies)
        with pytest.raises(KeyboardInterrupt):
            await stage.prepared()
    late = {ref: await stage.bench.one.kept_page(ref) for ref in refs}
    assert all(late.values())
    await stage.prepared()
    job = await stage.bench.one.job("j")
    assert not await stage.bench.one.kept_pages("j", job.incarnation)
    stage.bench.client.cancel("j")
    await stage.bench.asyncs.hset(
        stage.bench.one.keys.kept("j"), mapping={f"0|{ref.number}": '{"0":"{}"}' for ref in refs}
    )
    await stage.one._unwritten.write(job, job.resumed - 1)
    assert stage.parts == [], "not among the files of the run that has begun"


async def test_pages_of_another_job_of_the_id_are_not_this_ones(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    refs = await stage.judged(gather=False)
    full(monkeypatch)
    stage.bench.client.cancel("j")
    await gathered(stage, refs)
    await ended(stage)
    assert len(await stage.bench.one.kept_pages("j", refs[0].incarnation)) == ITEMS
    assert await stage.bench.one.kept_pages("j", "another") == []
    await stage.bench.one.announced("j")
    assert stage.bench.client.delete("j") == "cancelled"
    assert not stage.bench.redis.exists(stage.bench.one.keys.kept("j"))
