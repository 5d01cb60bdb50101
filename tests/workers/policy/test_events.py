"""Which events can be believed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from dicast.workers.policy.calls import Cost, is_sane
from tests.workers.policy.build import done, sent

DONE = done("a", 2.0, 1.0)


@pytest.mark.parametrize("changes", [
    {"at": 1.0},  # refused at once
    {"status": 0}, {"status": 999}, {"open_before": 0}, {"spent": Cost(0.0)}, {"used": Cost(1.0, 1e12, 0.0)},
])  # fmt: skip
def test_what_can_have_happened_is_believed(changes):
    assert is_sane(replace(DONE, **changes))


@pytest.mark.parametrize("changes", [
    {"at": 0.9}, {"at": math.inf}, {"at": math.nan}, {"sent_at": -math.inf}, {"sent_at": math.nan},
    {"status": -1}, {"status": 1000}, {"open_before": -1}, {"estimated_tokens": -1.0}, {"estimated_tokens": math.inf},
    {"spent": Cost(-1.0)}, {"spent": Cost(1.0, math.inf)}, {"used": Cost(1.0, 0.0, math.nan)},
    {"used": Cost(1.0, -0.5)},
])  # fmt: skip
def test_what_cannot_have_happened_is_not(changes):
    assert not is_sane(replace(DONE, **changes))


@pytest.mark.parametrize("at, open_before, sane", [(1.0, 0, True), (math.inf, 0, False), (1.0, -1, False)])
def test_a_call_leaves_at_an_instant_beside_others(at, open_before, sane):
    assert is_sane(sent("a", at, open_before)) is sane


@pytest.mark.parametrize("status, ok, refused, failed", [
    (200, True, False, False), (299, True, False, False), (199, False, False, False), (300, False, False, False),
    (429, False, True, False), (529, False, True, False), (408, False, False, True), (500, False, False, True),
    (599, False, False, True), (400, False, False, False), (402, False, False, False), (0, False, False, True),
    (99, False, False, True), (100, False, False, False),
])  # fmt: skip
def test_a_status_says_what_the_provider_did(status, ok, refused, failed):
    event = done("a", 2.0, 0.5, status)
    assert (event.ok, event.was_refused, event.failed, event.latency_s) == (ok, refused, failed, 1.5)
