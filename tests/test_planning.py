"""Planning: every unit is published once, and no page carries more text than a store and a worker bear at once."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from dicast.app.domain.item import Item
from dicast.app.domain.plan import PIECE_BYTES, pieces
from dicast.app.pipeline.plan import Lookahead, Planner
from tests.ledger.bench import Bench, a_job

LARGE = 900_000
ITEMS = 30


@pytest.fixture
async def bench(redis_url):
    bench = Bench(redis_url)
    yield bench
    await bench.asyncs.aclose()
    bench.redis.close()


@pytest.mark.parametrize("form", ["items", "file"])
@pytest.mark.parametrize("dimensions, page_max", [(2, 500), (3, 50), (3, 7)])
async def test_large_texts_make_short_pages(bench, tmp_path, form, dimensions, page_max):
    texts = [{"id": f"i{n}", "text": f"{n:09}" * (LARGE // 9)} for n in range(ITEMS)]
    job = a_job(dimensions=dimensions, items=1).model_dump(exclude={"items"})
    if form == "file":
        path = tmp_path / "items.jsonl"
        path.write_text("".join(json.dumps(text) + "\n" for text in texts))
        job["items"] = {"path": str(path)}
    else:
        job["items"] = texts
    job = type(a_job()).model_validate(job)
    units = ITEMS * dimensions
    plan = [SimpleNamespace(pools=("p",), agents=(0,), dimensions=dimensions, replicates=1, batched=False)]
    bench.client.submit(job, [vars(lane) for lane in plan], units, {})
    await bench.one.start("j", units)
    pages = []

    async def publish(_, page):
        carried = [n for n in bench.redis.hkeys(bench.one.keys.page(page.ref)) if n.startswith("i:")]
        pages.append(([token.position for token in page.tokens], carried))
        assert {n: item.text for n, item in page.items.items()} == {n: texts[n]["text"] for n in page.items}

    async def limit(pool):
        return units

    async def stops(_):
        return {}

    pools, stopped = SimpleNamespace(limit=limit, model=str), SimpleNamespace(stops=stops)
    planner = Planner(bench.one, pools, stopped, Lookahead(5, page_max), str(tmp_path))
    await planner.plan(await bench.one.job("j"), 0, SimpleNamespace(page=publish))
    assert [position for positions, _ in pages for position in positions] == list(range(units))
    assert max(len(carried) for _, carried in pages) <= PIECE_BYTES // LARGE + 2
    assert all(len(positions) <= page_max for positions, _ in pages)


async def test_items_are_read_until_they_are_enough(bench):
    sizes = [10] * 100 + [3_000_000] * 10
    job = a_job().model_copy(update={"items": [Item(id=f"i{n}", text="x" * size) for n, size in enumerate(sizes)]})
    bench.submit(job)

    async def read(numbers, **most):
        return [item.id for item in await bench.one.items_within("j", numbers, **most)]

    assert await read(range(110)) == [f"i{n}" for n in range(103)]
    assert await read(range(105, 110)) == ["i105", "i106", "i107"]
    assert await read(range(105, 110), most_bytes=1) == ["i105"]
    assert await read(range(3)) == ["i0", "i1", "i2"]
    assert await read(range(108, 111)) == []


def test_pieces_hold_no_more_than_is_said():
    items = [Item(id=f"i{n}", text="x" * size) for n, size in enumerate([1, 1, 1, 50, 1, 99, 99, 1])]
    assert [[len(item.text) for item in piece] for piece in pieces(items, 3, 50)] == [
        [1, 1, 1],
        [50],
        [1, 99],
        [99],
        [1],
    ]
    assert list(pieces([], 3)) == []
