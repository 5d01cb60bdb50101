"""A job whose items are arranged is planned in their new order, from a file or from the store."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest

from dicast.app.datasets import fingerprint
from dicast.app.domain.arrangement import Arrangement, Shuffle
from dicast.app.domain.item import ItemSource
from dicast.app.domain.plan import Lane
from dicast.app.pipeline import plan, start
from dicast.app.pipeline.plan import DatasetChanged, Lookahead, Planner
from dicast.app.pipeline.start import Arranging
from dicast.app.reports.folders import begin, own_folder
from dicast.app.reports.stored_items import ARRANGED
from tests.ledger.bench import Bench, a_job

ITEMS = 40
SHUFFLED = Arrangement(shuffle=Shuffle("seed"))


@pytest.fixture
async def bench(redis_url, monkeypatch):
    for module in (start, plan):
        monkeypatch.setattr(module, "arrangement_of", lambda spec: SHUFFLED)
    bench = Bench(redis_url)
    yield bench
    await bench.asyncs.aclose()
    bench.redis.close()


def submitted(bench, tmp_path, form):
    texts = [{"id": f"i{n}", "text": f"text {n}", "metadata": {"score": n}} for n in range(ITEMS)]
    job = a_job(dimensions=2, items=1).model_dump(exclude={"items"})
    job["ratings"] = {"columns": {"d0": "score"}, "path": None}
    if form == "file":
        path = tmp_path / "items.jsonl"
        path.write_text("".join(json.dumps({"id": t["id"], "text": t["text"], **t["metadata"]}) + "\n" for t in texts))
        job["items"] = {"path": str(path)}
    else:
        job["items"] = texts
    job = type(a_job()).model_validate(job)
    extra = {"fingerprint": fingerprint(job.items)} if isinstance(job.items, ItemSource) else {}
    bench.client.submit(job, [Lane(("p",), (0,), 2, 1, False)], 2 * ITEMS, extra)


@pytest.mark.parametrize("form", ["items", "file"])
@pytest.mark.parametrize("page_max", [7, 500])
async def test_items_are_planned_in_their_new_order(bench, tmp_path, form, page_max):
    submitted(bench, tmp_path, form)
    job = await bench.one.job("j")
    begin(tmp_path, "j", job.incarnation)
    starters = [Arranging(ledger, str(tmp_path)) for ledger in (bench.one, bench.two)]
    await asyncio.gather(*(starter.arrange(job) for starter in starters))
    folder = own_folder(tmp_path, "j", job.incarnation)
    lines = [json.loads(line) for line in (folder / ARRANGED).read_text().splitlines()]
    order = [line["id"] for line in lines]
    assert sorted(order) == sorted(f"i{n}" for n in range(ITEMS))
    assert order != [f"i{n}" for n in range(ITEMS)]
    assert not any("metadata" in line for line in lines), "people's ratings stay apart"
    assert {path.name for path in folder.iterdir()} == {ARRANGED, "incarnation"}

    await bench.one.start("j", 10)
    planned = {}

    async def publish(_, page):
        for token in page.tokens:
            planned[token.position] = page.items[token.position // 2].id

    async def limit(pool):
        return 2 * ITEMS

    async def stops(_):
        return {}

    pools, stopped = SimpleNamespace(limit=limit, model=str), SimpleNamespace(stops=stops)
    planner = Planner(bench.one, pools, stopped, Lookahead(5, page_max), str(tmp_path))
    job = await bench.one.job("j")
    while (await bench.one.lane("j", 0)).cursor != "":
        bench.redis.hset(bench.one.keys.job("j"), "open:0", 0)  # as if all had ended
        await planner.plan(job, 0, SimpleNamespace(page=publish))
    assert [planned[position] for position in range(2 * ITEMS)] == [name for name in order for _ in range(2)]


async def test_a_file_that_has_changed_is_not_arranged(bench, tmp_path):
    submitted(bench, tmp_path, "file")
    job = await bench.one.job("j")
    begin(tmp_path, "j", job.incarnation)
    path = tmp_path / "items.jsonl"
    path.write_text(path.read_text().replace("text 3", "tixt 3"))
    with pytest.raises(DatasetChanged, match="has changed since job j was submitted"):
        await Arranging(bench.one, str(tmp_path)).arrange(job)
    path.write_text(path.read_text().replace("tixt 3", "text 3") + '{"id": "more", "text": "t", "score": 1}\n')
    with pytest.raises(DatasetChanged, match="has changed"):
        await Arranging(bench.one, str(tmp_path)).arrange(job)
    assert {path.name for path in (tmp_path / "j").iterdir()} == {"incarnation"}


async def test_the_job_is_attended_while_its_items_are_arranged(bench, tmp_path, monkeypatch):
    """Or the housekeeping would have others start it too."""
    submitted(bench, tmp_path, "items")
    job = await bench.one.job("j")
    begin(tmp_path, "j", job.incarnation)
    bench.redis.zadd(bench.one.keys.unfinished, {"j": 1})
    bench.redis.hset(bench.one.keys.base.clock, "now", 1_000_000)
    await Arranging(bench.one, str(tmp_path)).arrange(job)
    assert bench.redis.zscore(bench.one.keys.unfinished, "j") >= 1_000_000 + bench.one.intervals.unattended_ms
