"""The report's books against the provider's log: what differs is seen, and what a death explains is borne."""

import pytest

from dicast.app.ledger.client import COUNTERS
from lab.chaos.books import compare

CALL = {"status": 200, "input_tokens": 10, "output_tokens": 3}
REFUSED = {"status": 429, "input_tokens": 10, "output_tokens": 0}
OPINION = {"score": 5, "usage": {"input_tokens": 10, "output_tokens": 3}}
TRUE = dict.fromkeys(COUNTERS, 0) | {"calls": 3, "requeues": 1, "tokens_in": 20, "tokens_out": 6}


def found(
    counters=(), *, entries=(CALL, CALL, REFUSED), excused=0, fails=False, unreached=False, died=False, opinions=2
):
    told = TRUE | dict(counters)
    given = compare(
        told, entries, excused=excused, fails=fails, unreached=unreached, died=died, opinions=[OPINION] * opinions
    )
    return [what.partition(":")[0] for what in given]


def test_true_books_are_true():
    assert found() == []


@pytest.mark.parametrize(
    "name, seen",
    [("calls", "calls"), ("tokens_in", "input tokens"), ("tokens_out", "output tokens"), ("requeues", "requeues"),
     ("retries", "retries"), ("timeouts", "timeouts"), ("possible_double_charges", "possible_double_charges"),
     ("stale", "stale"), ("lost", "lost")],
)  # fmt: skip
def test_one_too_many_is_seen(name, seen):
    assert found({name: TRUE[name] + 1}) == [seen]


@pytest.mark.parametrize("name", ["calls", "tokens_in", "tokens_out", "requeues"])
def test_one_too_few_is_seen_unless_somebody_died(name):
    assert found({name: TRUE[name] - 1}) != []
    assert found({name: TRUE[name] - 1}, excused=1) == []


def test_claims_that_died_before_their_calls_may_be_told_as_charges():
    assert found({"possible_double_charges": 5}, died=True) == []
    assert found({"timeouts": 1}, died=True) == ["timeouts"]


def test_more_than_was_made_is_never_borne():
    assert found({"calls": 4}, excused=3) == ["calls"]
    assert found({"tokens_in": 21}, excused=3, fails=True) == ["input tokens"]


def test_calls_that_did_not_reach_the_provider_are_told():
    assert found({"calls": 5, "retries": 2}, fails=True, unreached=True) == []


def test_opinions_cost_no_more_than_was_taken():
    assert found(opinions=3) == ["input tokens", "output tokens"]
