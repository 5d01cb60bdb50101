"""Single refusals at the top, and rows of failures."""

from __future__ import annotations

import pytest

from dicast.workers.policy.adaptive_state import TopRefusals
from dicast.workers.policy.breaker import Failures
from tests.workers.policy.build import done


def suspected(level: int = 40, at: float = 100.0) -> TopRefusals:
    top_refusals = TopRefusals()
    top_refusals.note_refusal(level, at)
    return top_refusals


@pytest.mark.parametrize("limit, now, settled, noise", [
    (41.0, 105.9, True, True),
    (41.0, 106.0, True, False),  # it may have moved meanwhile
    (40.0, 101.0, False, False),  # not the slot
])  # fmt: skip
def test_a_slot_that_is_soon_accepted_again_was_refused_by_noise(
    limit: float, now: float, settled: bool, noise: bool
) -> None:
    top_refusals = suspected()
    top_refusals.step_confirmed(limit, now, rtt_s=2.0, until=200.0)
    assert (top_refusals.level is None, top_refusals.noisy_until == 200.0) == (settled, noise)


def test_only_an_answer_to_a_later_call_ends_a_row_of_failures() -> None:
    failures = Failures()
    rows = [failures.count(done("x", at, sent_at, status), at_floor=False) for at, sent_at, status in [
        (10.0, 5.0, 500), (11.0, 4.0, 0), (12.0, 4.0, 200), (13.0, 3.9, 200), (14.0, 9.0, 429), (15.0, 4.1, 200),
        (16.0, 15.5, 503),
    ]]  # fmt: skip
    assert rows == [1, 2, 2, 2, 2, 0, 1]


@pytest.mark.parametrize("at_floor, row", [(True, 1), (False, 0)])
def test_a_refusal_is_a_failure_where_nothing_is_left_to_cut(at_floor: bool, row: int) -> None:
    assert Failures().count(done("x", 2.0, 1.0, 429), at_floor) == row
