"""A few runs of the campaign on real processes, and its checker against runs that were tampered with."""

import json
import random
import shutil
import time

import pytest

from dicast.app.ledger.keys import LedgerKeys
from lab.chaos.campaign import draw
from lab.chaos.canaries import API_KEY, TEXT
from lab.chaos.faults import CATALOGUE
from lab.chaos.installation import Installation, a_job
from lab.chaos.invariants import judge
from lab.chaos.runs import Run, perform
from tests.e2e.cluster import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def place():
    place = Installation()
    yield place
    place.stop()
    shutil.rmtree(place.folder)


@pytest.mark.parametrize(
    "fault",
    ["nothing", "answers_swapped", "double_messages", "kill_worker", "restart_store", "lose_20_percent_of_answers"],
)
def test_invariants_hold_under_a_fault(place, fault):
    verdict = perform(place, [CATALOGUE[fault]], seed=1)
    place.heal()
    assert not verdict.violations
    assert verdict.recovery_s >= 0


def test_the_checker_sees_what_is_wrong(place):
    """Each way of tampering is seen as what it is, and nothing else is."""
    job = a_job(random.Random(1), f"tampered-{time.monotonic_ns()}")
    run = Run(place, 1, [CATALOGUE["nothing"]], random.Random(1), job, 0.1)
    run.log_sizes = {str(log): log.stat().st_size for log in place.logs()}
    place.provider.control(latency=0.05, sigma=0.0, reset=True)
    place.cluster.submit(job)
    until(lambda: (s := run.status()) is not None and s.state.ended, "the job ends")
    assert judge(run, ended=True) == []

    def seen():
        return {violation.partition(":")[0] for violation in judge(run, ended=True)}

    opinions = place.cluster.results / run.job_id / "opinions.jsonl"
    whole = opinions.read_text()
    opinions.write_text(whole + whole.splitlines()[0] + "\n")
    assert seen() == {"one outcome", "counts"}  # its tokens are told twice
    first, *others = whole.splitlines()
    told = json.loads(first)
    opinions.write_text("\n".join([json.dumps({**told, "score": told["score"] % 10 + 1}), *others]) + "\n")
    assert seen() == {"own answers"}
    opinions.write_text(whole)
    log = place.workers[0].log
    size = log.stat().st_size
    with log.open("a") as file:
        file.write(json.dumps({"event": "log", "message": API_KEY}) + "\n")
    assert seen() == {"no secrets"}
    with log.open("r+") as file:
        file.truncate(size)
        file.seek(size)
        node = place.node_of(place.workers[0])
        file.write(json.dumps({"event": "acquired", "lease": "x", "node": node, "agent": "", "dimension": ""}) + "\n")
    assert seen() == {"counts"}
    with log.open("r+") as file:
        file.truncate(size)
    record = LedgerKeys(place.cluster.app.keys).job(run.job_id)
    place.store.client.hincrby(record, "tokens_out", 1)
    assert seen() == {"counts"}
    place.store.client.hincrby(record, "tokens_out", -1)
    place.store.client.set("elsewhere", TEXT)
    assert seen() == {"no secrets"}
    place.store.client.delete("elsewhere")
    run.job["items"] = run.job["items"][1:]
    assert seen() == {"one outcome", "spending"}


def test_a_campaign_is_the_same_for_the_same_seed_and_has_every_fault():
    plan = draw(200, 1)
    assert plan == draw(200, 1) != draw(200, 2)
    assert {name for names, _ in plan for name in names} == set(CATALOGUE)
