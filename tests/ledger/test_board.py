"""The score board says what the results say, and is there as long as they are wanted."""

from __future__ import annotations

import orjson
import pytest

from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.plan import Unit, lanes
from dicast.app.domain.scoreboard import ENDED, NOT_NEEDED, OPEN, Layout, Scoreboard, mark_of
from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.records import UnitResult
from dicast.app.pipeline.record import Recorder, Spool
from tests.ledger.bench import a_job, claim


@pytest.fixture(autouse=True)
def every_job_has_one(monkeypatch):
    monkeypatch.setattr(EvaluationJob, "keeps_scoreboard", True)


def result(job, claimed, score=None, mark=None):
    place = job.place(job.lanes[0], claimed.position)
    mark = ENDED if score is None and mark is None else mark or mark_of(score, 1)
    return UnitResult(claimed.position, claimed.fence, b'{"opinion":{}}', score is not None, place, mark)


def marks(board):
    layout = board.layout
    return [
        board.mark(Unit(item, number, agent, dimension))
        for item in range(board.first_item, board.first_item + board.items)
        for number in range(layout.rounds)
        for agent in range(layout.agents)
        for dimension in range(layout.dimensions)
    ]


async def test_the_board_says_what_the_results_say(bench):
    ref = await bench.started()
    job = await bench.one.job("j")
    assert marks(await bench.one.scoreboard(job, 0, 2)) == [OPEN] * 4
    third = await claim(bench.one, ref, 3, item=1)
    await bench.one.record(ref, {}, [result(job, third, score=10)])
    assert marks(await bench.one.scoreboard(job, 0, 2)) == [OPEN, OPEN, OPEN, mark_of(10, 1)]
    first = await claim(bench.one, ref, 0)
    bench.kill(0)
    heir = await claim(bench.two, ref, 0)
    await bench.two.record(ref, {}, [result(job, heir, score=1)])
    await bench.one.record(ref, {}, [result(job, first, score=7)])  # too late
    board = await bench.one.scoreboard(job, 0, 2)
    assert marks(board) == [mark_of(1, 1), OPEN, OPEN, mark_of(10, 1)]
    assert board.scores(0, 0, 0) == [1] and board.scores(0, 0, 1) == []
    assert not board.has_ended(0, [0])
    failed = await claim(bench.two, ref, 1)
    await bench.two.record(ref, {}, [result(job, failed)])
    board = await bench.one.scoreboard(job, 0, 1)
    assert board.has_ended(0, [0]) and board.score(Unit(0, 0, 0, 1)) is None
    with pytest.raises(IndexError):
        board.mark(Unit(1, 0, 0, 0))
    bench.redis.delete(bench.one.keys.page(ref))
    await bench.two.record(ref, {}, [result(job, failed, score=4)])  # of a page that is gathered
    assert marks(await bench.one.scoreboard(job, 1, 1)) == [OPEN, mark_of(10, 1)]
    assert marks(await bench.one.scoreboard(job, 0, 1)) == [mark_of(1, 1), ENDED]


async def test_results_from_before_stand_there_when_their_page_is_opened(bench):
    bench.submit(a_job())
    await bench.one.start("j", 5)
    record = await bench.one.job("j")
    page = PageRef("j", record.incarnation, 0, 0)
    results = {0: b'{"opinion":{}}', 2: b'{"opinion":{}}'}
    for _ in range(2):
        opened = await bench.one.open_page(
            page, 0, 4, "", 1, {}, results, "mine", skipped=1, marks=[(0, mark_of(5, 1)), (2, NOT_NEEDED)]
        )
        assert opened == 2
    assert marks(await bench.one.scoreboard(record, 0, 2)) == [mark_of(5, 1), OPEN, NOT_NEEDED, OPEN]
    counters = bench.client.status("j").counters
    assert (counters["done"], counters["scored"], counters["failed"], counters["spared"]) == (2, 1, 0, 1)


async def test_it_leaves_with_its_job(bench):
    ref = await bench.started()
    job, key = await bench.one.job("j"), bench.one.keys.board("j")
    for position in range(4):
        claimed = await claim(bench.one, ref, position, item=position // 2)
        await bench.one.record(ref, {}, [result(job, claimed, score=3)])
    assert bench.redis.strlen(key) == 8
    await bench.one.close_page(ref, 1)
    await bench.one.complete("j", job.incarnation, b"{}", 60)
    assert not bench.redis.exists(key)
    bench.redis.set(key, "of a job that the store forgot")
    bench.redis.delete(bench.one.keys.job("j"))
    bench.submit(a_job())
    assert not bench.redis.exists(key)


async def test_what_a_dead_process_kept_on_disk_comes_to_the_board_too(bench, tmp_path):
    ref = await bench.started()
    job = await bench.one.job("j")
    claimed = await claim(bench.one, ref, 1)
    recorder = Recorder(bench.one, Spool(tmp_path, "ns", "one"))
    position, fence, payload, *rest = result(job, claimed, score=9)
    entry = {"page": str(ref), "counters": {}, "results": [[position, fence, payload.decode(), *rest]]}
    await recorder.store_spooled(orjson.dumps(entry))
    assert marks(await bench.one.scoreboard(job, 0, 1)) == [OPEN, mark_of(9, 1)]
    assert UnitResult.read(1, 2, "{}", 1) == UnitResult(1, 2, b"{}", True)  # as earlier versions wrote them


def test_places_are_the_same_whatever_lane_a_unit_is_of():
    layout = Layout(rounds=3, agents=3, dimensions=2)
    plan = lanes([("a",), ("b",), ("a",)], 2, 3, [False, True, False])
    assert [lane.agents for lane in plan] == [(0, 2), (1,)]
    places = sorted(layout.place(lane.unit(p)) for lane in plan for p in range(4 * lane.units_per_item))
    assert places == list(range(4 * layout.units_per_item))
    assert layout.span(2, 1) == (2 * 2 * 18, 3 * 2 * 18 - 1)


def test_a_board_holds_scores_of_the_widest_scale():
    layout = Layout(1, 1, 2)
    lowest = [-(10**9), 0]
    for score in (lowest[0], lowest[0] + 1000):
        mark = mark_of(score, lowest[0])
        board = Scoreboard(layout, lowest, 0, 1, bytes([mark // 128, mark % 128]))
        assert board.score(Unit(0, 0, 0, 0)) == score
        assert board.mark(Unit(0, 0, 0, 1)) == OPEN  # the store has not got it yet


def test_a_job_that_decides_nothing_by_scores_has_none(monkeypatch):
    monkeypatch.undo()
    assert not a_job().keeps_scoreboard
