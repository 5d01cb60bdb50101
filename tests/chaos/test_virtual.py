"""The whole pipeline in virtual time: some of the worlds of `python -m lab.chaos.virtual`."""

import gc
import random
import subprocess
import sys

import pytest

from dicast.app.ledger.keys import LedgerKeys
from lab.chaos.virtual.batch import server
from lab.chaos.virtual.repeats import SMALL, SmallScene, every_loss
from lab.chaos.virtual.seeds import BatchSeed, Seed
from lab.chaos.virtual.stories import STORIES

pytestmark = pytest.mark.timeout(600)  # they compute for as long as they last


@pytest.fixture(scope="module")
def client():
    with server() as client:
        yield client


@pytest.fixture(scope="module", autouse=True)
def what_killed_nodes_leave_behind():
    """Coroutines of killed nodes are thrown away as they are."""
    before, sys.unraisablehook = sys.unraisablehook, lambda _: None
    yield
    gc.collect()
    sys.unraisablehook = before


@pytest.fixture(autouse=True)
def what_worlds_set(monkeypatch):
    """The product's chance is seeded for each world, its names are the world's, and no process computes statistics."""
    monkeypatch.setattr("dicast.app.ledger.client.new_incarnation", None)
    monkeypatch.setattr("dicast.app.ledger.batches.new_name", None)
    monkeypatch.setattr("dicast.app.reports.finishing._in_own_process", None)
    state = random.getstate()
    yield
    random.setstate(state)


@pytest.mark.parametrize("seeds", [range(n, n + 25) for n in range(0, 150, 25)], ids=lambda seeds: f"{seeds[0]}-")
def test_every_invariant_holds_whatever_the_world_does(client, seeds):
    for seed in seeds:
        verdict = Seed(client, seed).run()
        replay = f"python -m lab.chaos.virtual --first {seed} --seeds 1 --trace"
        assert not verdict.violations, f"{replay}: {verdict.violations}"


@pytest.mark.parametrize("seeds", [range(6), range(6, 12)], ids=lambda seeds: f"{seeds[0]}-")
def test_every_invariant_holds_where_units_go_by_batches(client, seeds):
    for seed in seeds:
        verdict = BatchSeed(client, seed).run()
        replay = f"python -m lab.chaos.virtual --batches --first {seed} --seeds 1 --trace"
        assert not verdict.violations, f"{replay}: {verdict.violations}"


@pytest.mark.parametrize("small", SMALL, ids=lambda small: small.name)
def test_an_answer_that_is_lost_changes_neither_outcome_nor_books(client, small):
    """Some of them; `python -m lab.chaos.virtual --losses` takes all."""
    wrong = [loss for loss in every_loss(client, small, most=36) if loss.verdict.violations]
    assert not wrong, "\n".join(map(str, wrong[:5]))


ONCE_WRONG = {"SameIdAfterFlush": (10,), "LostWrites": (30,)}


@pytest.mark.parametrize("name", STORIES)
def test_what_is_told_in_order_ends_well(client, name):
    for seed in (0, 1, 2, *ONCE_WRONG.get(name, ())):
        verdict = STORIES[name](client, seed).run()
        replay = f"python -m lab.chaos.virtual --story {name} --first {seed} --seeds 1 --trace"
        assert not verdict.violations, f"{replay}: {verdict.violations}"


WRONG = {
    "calls": "counts: calls", "tokens_in": "counts: tokens_in", "requeues": "counts: requeues",
    "stale": "counts: stale", "possible_double_charges": "counts: possible_double_charges",
    "done": "counts: the ledger counts",
}  # fmt: skip


@pytest.mark.parametrize("counter", WRONG)
def test_a_wrong_book_is_seen(client, counter):
    """As long as the job runs, somebody adds one to a counter."""
    scene = SmallScene(client, SMALL[0], {})
    job = LedgerKeys(scene.world.keys).job("j")
    scene.world.at(0.5, lambda: client.hincrby(job, counter, 1))
    assert any(found.startswith(WRONG[counter]) for found in scene.run().violations)


def test_an_answer_to_another_question_is_seen(client, monkeypatch):
    monkeypatch.setattr("lab.chaos.virtual.provider.told_by", lambda call: f"call {max(0, call.number - 1)}")
    assert any("was given 'call 0'" in found for found in SmallScene(client, SMALL[0], {}).run().violations)


def test_a_seed_is_the_same_at_every_run(client):
    first, second = (Seed(client, 7).run() for _ in range(2))
    assert first == second
    assert first.trace


def test_the_command_shares_its_worlds_among_processes():
    command = [sys.executable, "-m", "lab.chaos.virtual", "--story", "LostWrites", "--seeds", "8", "--parallel", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 worlds" in done.stdout
