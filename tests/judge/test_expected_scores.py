"""Judges whose scores are expected scores: asked for with their tokens, kept beside what was written, and told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest

from dicast.app import logs
from dicast.app.domain.fingerprints import judge_digest
from dicast.app.domain.material import question_digest
from dicast.app.domain.opinion import Opinion
from dicast.app.domain.panel import Agent
from dicast.app.domain.refusals import JobRefused
from dicast.app.domain.report import ReportAgent
from dicast.app.ledger.troubles import StopStore
from dicast.app.reports.browse import Browser
from dicast.app.reports.files import finish, write_page
from dicast.app.submission.submit import prepare
from dicast.config.pools import Pools, PoolsError
from dicast.config.settings import Settings
from lab.provider import Behaviour, SimulatedAccount, SimulatedConfig
from tests.ledger.bench import KEYS, a_job
from tests.providers.conftest import make
from tests.reports.building import NOW, header, opinion

NOISE = 0.8


class Kept(SimulatedAccount):
    """Keeps the bodies of requests."""

    def __init__(self, config: SimulatedConfig) -> None:
        super().__init__(config)
        self.bodies: list[Any] = []

    async def serve(self, request: Any, wire: Any, call: Any) -> Any:
        self.bodies.append(call.body)
        return await super().serve(request, wire, call)


def account(**behaviour: Any) -> Kept:
    return Kept(SimulatedConfig(behaviour=Behaviour().changed(behaviour)))


def job_of(dimensions: int = 1, **more: Any) -> Any:
    job = a_job(items=2, dimensions=dimensions, **more)
    items = [item.model_copy(update={"text": f"QUALITY 0.5{n}\nText."}) for n, item in enumerate(job.items)]
    judge = Agent(name="a0", model="judge", score_from="logprobs")
    return job.model_copy(update={"agents": [judge], "items": items})


def provider(sim: SimulatedAccount, **options: Any) -> Any:
    return make("openai", sim.base_url, **{"logprobs": 20, "max_response_bytes": 1_000_000, **options})


@pytest.fixture
def as_written(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    monkeypatch.setattr(logs, "score_as_written", lambda **line: lines.append(line))
    return lines


@pytest.mark.parametrize("structured", [True, False])
async def test_a_score_is_expected_and_what_was_written_is_kept_beside_it(bench, desk, as_written, structured):
    async with account(quality_noise=NOISE) as sim:
        ref = await bench.started(job_of(), units=2)
        judge = desk(provider(sim, structured_output=structured))
        await judge.do(ref, 0)
        await judge.provider.close()
        body = sim.bodies[0]
    assert (body["logprobs"], body["top_logprobs"], as_written) == (True, 20, [])
    found = (await judge.results(ref))[0]["opinion"]
    # 5.5 perceived with a normal error of 0.8 and rounded: as often 5 as 6, and symmetric about 5.5
    assert found["score"] == pytest.approx(5.5, abs=0.001) and isinstance(found["score"], float)
    assert isinstance(found["answer_score"], int)
    assert bench.client.status("j").counters["scored"] == 1


async def test_each_dimension_of_a_batched_answer_has_its_own(bench, desk, as_written):
    async with account(quality_noise=NOISE, late=1.0) as sim:
        ref = await bench.started(job_of(3), units=6, batched=True)
        judge = desk(provider(sim))
        await judge.do(ref, "b0")
        await judge.provider.close()
    results = await judge.results(ref)
    scores = [results[position]["opinion"]["score"] for position in range(3)]
    assert scores == pytest.approx([5.5, 6.0, 6.5], abs=0.01)
    assert as_written == []


async def test_a_server_that_tells_no_tokens_leaves_the_written_score(bench, desk, as_written, monkeypatch):
    monkeypatch.setattr("dicast.app.providers.simulated._logprobs", lambda *_: None)
    async with account(quality_noise=NOISE) as sim:
        ref = await bench.started(job_of(), units=2)
        judge = desk(provider(sim))
        await judge.do(ref, 0)
        await judge.provider.close()
    found = (await judge.results(ref))[0]["opinion"]
    assert isinstance(found["score"], int) and "answer_score" not in found
    assert [(line["score"], line["reason"]) for line in as_written] == [
        (found["score"], "the answer came without log probabilities")
    ]


async def test_few_alternatives_leave_the_written_score_where_they_hold_too_little(bench, desk, as_written):
    async with account(quality_noise=3.0) as sim:
        ref = await bench.started(job_of(), units=2)
        judge = desk(provider(sim, logprobs=3))
        await judge.do(ref, 0)
        await judge.provider.close()
        assert sim.bodies[0]["top_logprobs"] == 3
    assert "answer_score" not in (await judge.results(ref))[0]["opinion"]
    assert "of the probability at its place, below 0.9" in as_written[0]["reason"]


@pytest.mark.parametrize("field", ["logprobs", "top_logprobs"])
async def test_a_model_that_refuses_them_is_asked_without_both(bench, desk, as_written, field):
    async with account(refuses=field) as sim:
        ref = await bench.started(job_of(), units=2)
        judge = desk(provider(sim))
        await judge.again(ref, 0, 2)
        await judge.do(ref, 1)
        await judge.provider.close()
        job = await judge.job(ref)
        sent = [{"logprobs", "top_logprobs"} & body.keys() for body in sim.bodies]
    assert sent == [{"logprobs", "top_logprobs"}, set(), set()]
    assert [told.name for told in await StopStore(bench.asyncs, KEYS).dropped(job)] == [field]
    assert len(as_written) == 2


async def test_a_worker_whose_pool_tells_none_does_not_ask(bench, desk):
    async with account() as sim:
        ref = await bench.started(job_of(), units=2)
        judge = desk(provider(sim, logprobs=0))
        await judge.do(ref, 0)
        await judge.provider.close()
        assert sim.stats()["calls"] == 0
    error = (await judge.results(ref))[0]["error"]
    assert error["kind"] == "rejected" and "score_from: logprobs" in error["message"]


async def test_others_are_asked_as_before(bench, desk):
    async with account() as sim:
        ref = await bench.started(a_job(items=2, dimensions=1), units=2)
        judge = desk(provider(sim))
        await judge.do(ref, 0)
        await judge.provider.close()
        assert not {"logprobs", "top_logprobs"} & sim.bodies[0].keys()


def test_where_scores_come_from_counts_for_what_is_asked_and_its_absence_changes_nothing() -> None:
    job, plain, other = a_job(items=1, dimensions=1), Agent(name="a"), Agent(name="a", score_from="logprobs")
    asks = [question_digest(agent, job.dimensions, job.items[0], 0) for agent in (plain, other)]
    assert asks[0] != asks[1] and judge_digest(plain) != judge_digest(other)
    assert "score_from" not in plain.model_dump_json(exclude=plain.unset)
    assert other.parameters(0) == {}


POOLS = """
default = "openai"
[pools.openai]
provider = "openai"
model = "m"
[pools.silent]
provider = "openai"
base_url = "http://localhost:8000/v1"
model = "m"
logprobs = false
[pools.five]
provider = "openai"
base_url = "http://localhost:8000/v1"
model = "m"
logprobs = 5
[pools.claude]
provider = "anthropic"
model = "c"
[pools.local]
provider = "local"
"""


def prepared(*pools: str) -> Any:
    job = {
        "items": [{"id": "a", "text": "t"}],
        "agents": [{"name": "j", "score_from": "logprobs", "deployments": [{"pool": pool} for pool in pools]}],
        "dimensions": [{"id": "d", "instructions": "Good?"}],
    }
    return prepare(job, pools=Pools.parse(POOLS), settings=Settings())


def test_pools_that_tell_none_are_refused_when_a_job_is_submitted() -> None:
    assert prepared("openai", "five").units == 1
    reasons = {"claude": "Anthropic's API has none", "silent": "`logprobs` are false", "local": "not said"}
    for pool, why in reasons.items():
        told = f"agents: 'j' has score_from: 'logprobs', and pool '{pool}' tells no log probabilities.*{why}"
        with pytest.raises(JobRefused, match=told):
            prepared("openai", pool)


def test_what_a_pool_says_of_log_probabilities() -> None:
    pools = Pools.parse(POOLS)
    assert Pools.parse(pools.to_toml()) == pools
    most = {name: spec.logprobs for name, spec in pools.pools.items()}
    assert most == {"openai": 20, "silent": 0, "five": 5, "claude": 0, "local": 0}
    for wrong in ("21", "-1", '"yes"', "1.5"):
        with pytest.raises(PoolsError, match=r"logprobs must be true, false, or the number of alternatives.*got"):
            Pools.parse(POOLS.replace("logprobs = 5", f"logprobs = {wrong}"))
    with pytest.raises(PoolsError, match="logprobs must be false with dialect 'anthropic'"):
        Pools.parse(POOLS.replace('model = "c"', 'model = "c"\nlogprobs = true'))


JUDGES = [ReportAgent(name="strict", score_from="logprobs"), ReportAgent(name="kind")]


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[], Path]:
    given: list[Opinion] = [
        opinion(0, score=7.25, answer_score=8), opinion(1, score=4.5, answer_score=4), opinion(2, score=6),
        opinion(0, "kind", score=7), opinion(1, "kind", score=5), opinion(2, "kind", score=6),
    ]  # fmt: skip
    write_page(tmp_path, "job-1", NOW, "0", 0, given, [])
    return lambda: finish(tmp_path, "job-1", NOW, header(6, agents=JUDGES)) and tmp_path / "job-1"


def test_reports_go_by_expected_scores_and_tell_which_are_written_ones(tmp_path, folder) -> None:
    report = orjson.loads((folder() / "report.json").read_bytes())
    strict, kind = report["by_agent"]
    assert (strict["agent"]["score_from"], strict["as_written"]) == ("logprobs", 1)
    assert "score_from" not in kind["agent"] and "as_written" not in kind
    assert strict["scores"]["mean"] == pytest.approx((7.25 + 4.5 + 6) / 3)
    assert strict["scores"]["sd"] == pytest.approx(1.37689, abs=1e-4)
    assert strict["scores"]["histogram"] == {"5": 1, "6": 1, "7": 1}
    whole = report["by_dimension"][0]
    assert whole["scores"]["mean"] == pytest.approx((7.25 + 4.5 + 6 + 18) / 6)
    assert report["overall"] == pytest.approx((whole["scores"]["mean"] - 1) / 9)
    assert whole["mean_difference"] == pytest.approx((0.25 + 0.5 + 0) / 3)
    told = "strict: 1 of 3 scores are the written ones"
    assert any(told in line for line in map(str, report["conclusions"]["failures"]))


def test_columns_hold_what_lies_between_whole_numbers(folder) -> None:
    table = pq.read_table(folder() / "opinions.parquet")
    assert str(table.schema.field("score").type) == "double"
    assert table["score"].to_pylist() == [7.25, 4.5, 6.0, 7.0, 5.0, 6.0]
    assert table["answer_score"].to_pylist() == [8, 4, None, None, None, None]
    counts = {scores.judge: scores.counts for scores in Browser().scores(folder())}
    assert counts == {"strict": {7: 1, 5: 1, 6: 1}, "kind": {7: 1, 5: 1, 6: 1}}
