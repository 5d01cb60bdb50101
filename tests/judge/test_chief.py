"""What a chief's next page takes from the pages that have been gathered before, and what ends unasked."""

from __future__ import annotations

import orjson

from dicast.app.domain.escalation import stages_of
from dicast.app.domain.item import Item, VisibleOpinion
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.opinion import Opinion
from dicast.app.domain.plan import lanes
from dicast.app.ledger.records import JobRecord
from dicast.app.pipeline import plan as stages
from dicast.app.pipeline.plan import read_earlier_opinions
from dicast.app.reports.files import write_page

START = {"0": (0, 0), "1": (0, 0)}
ITEMS, NAMES = 6, ("ada", "ben", "cleo", "dora")
PAGES = {0: (3, 5, 4), 1: (2, 4)}
"""Units of the pages of each of the two earlier lanes; items are cut anywhere."""


def a_record() -> JobRecord:
    spec = EvaluationJob.model_validate({
        "items": [{"id": f"i{n}", "text": "A."} for n in range(ITEMS)],
        "agents": [{"name": name, "pool": "two" if name == "cleo" else "one"} for name in NAMES],
        "dimensions": [{"id": "d0", "instructions": "Is it so?"}],
        "panel": {"chief": "dora"},
    })  # fmt: skip
    pools = [(agent.pool,) for agent in spec.agents]
    plan = lanes(pools, 1, 1, [False] * len(NAMES), stages_of(spec))
    return JobRecord("j", spec, plan, ITEMS * len(NAMES), 4, None, "abc")


def put(folder, job, lane, page):
    """Gather one page of an earlier lane; nobody has an opinion on the item 2."""
    first = sum(PAGES[lane][:page])
    units = [job.lanes[lane].unit(position) for position in range(first, first + PAGES[lane][page])]
    opinions = [
        Opinion(judge=NAMES[u.agent], criterion_id="d0", item_id=f"i{u.item}", replicate=0, model="m",
                score=None if u.item == 2 else 5, argument=f"{NAMES[u.agent]} on {u.item}")
        for u in units
    ]  # fmt: skip
    write_page(folder, job.id, job.incarnation, str(lane), page, opinions, [])


def test_a_page_is_planned_as_far_as_all_earlier_ones_are_gathered(tmp_path):
    job = a_record()
    chief = job.lanes[2]
    assert [lane.stage for lane in job.lanes] == [0, 0, 1]

    def ready(first: int = 0, places=START):
        return read_earlier_opinions(str(tmp_path), job, chief, range(first, ITEMS), places)

    assert ready().items == 0
    put(tmp_path, job, 1, 0)
    put(tmp_path, job, 0, 1)  # the second before the first
    assert ready().items == 0
    put(tmp_path, job, 0, 0)
    assert ready().items == 2
    put(tmp_path, job, 1, 1)
    found = ready()
    assert found.items == 4
    for item, told in found.visible_opinions.items():
        said = {f"{name} on {item}" for name in NAMES[:3]} if item != 2 else {""}
        assert {one.argument for one in told} == said and len(told) == 3
    put(tmp_path, job, 0, 2)
    later = ready(4, orjson.loads(orjson.dumps(found.next_places)))
    assert later.items == 2 and {one.argument for one in later.visible_opinions[5]} == {
        f"{name} on 5" for name in NAMES[:3]
    }
    assert dict(later.next_places) == {"0": (2, 8), "1": (1, 2)}  # the pages before hold none of these items


def test_what_nobody_has_an_opinion_on_ends_unasked():
    job = a_record()
    lane = job.lanes[2]
    told = {0: [VisibleOpinion(round=0, criterion="d0", judge=1, said="4", argument="So.")],
            1: [VisibleOpinion(round=0, criterion="d0", judge=1)]}  # fmt: skip
    items = {number: Item(id=f"i{number}", text="A.", opinions=one) for number, one in told.items()}
    ended = stages.no_opinions_results(job, lane, items, range(2), {})
    assert ended.keys() == {1}
    assert orjson.loads(ended[1])["error"]["kind"] == "not_asked"
    assert orjson.loads(ended[1])["opinion"]["judge"] == "dora"
    assert stages.no_opinions_results(job, lane, items, range(2), {1: b"has one already"}) == {}
