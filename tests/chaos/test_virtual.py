"""The whole pipeline in virtual time: a few hundred of the seeds of `python -m chaos.virtual`."""

import gc
import random
import sys

import pytest

from chaos.virtual.batch import server
from chaos.virtual.seeds import Seed


@pytest.fixture(scope="module")
def client():
    with server() as client:
        yield client


@pytest.fixture(autouse=True)
def what_killed_nodes_leave_behind(monkeypatch):
    """Coroutines of killed nodes are thrown away as they are; the product's chance is seeded for each seed."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    monkeypatch.setattr("app.gathering.files", None)
    monkeypatch.setattr("app.housekeeping.DUE_EVERY_S", 1.0)
    state = random.getstate()
    yield
    gc.collect()
    random.setstate(state)


FOUND_SOMETHING = (2274, 2347, 2616, 4495, 5387, 5922)
"""A copy of a batch that came while its units were called one by one; a claim of a node that was not heard; planning
that goes on in a job that has ended."""


@pytest.mark.parametrize("seeds", [FOUND_SOMETHING, *(range(n, n + 50) for n in range(0, 200, 50))])
def test_every_invariant_holds_whatever_the_world_does(client, seeds):
    for seed in seeds:
        verdict = Seed(client, seed).run()
        assert not verdict.violations, f"python -m chaos.virtual --first {seed} --seeds 1 --trace: {verdict.violations}"


def test_a_seed_is_the_same_at_every_run(client):
    first, second = (Seed(client, 7).run() for _ in range(2))
    assert first == second
    assert first.trace
