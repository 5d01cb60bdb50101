"""What an episode of refusals means."""

from __future__ import annotations

import pytest

from tests.workers.policy.build import done, sent
from workers.policy.calls import CallLog
from workers.policy.verdict import Kind, VerdictConfig, ceiling_of, judge

CONFIG = VerdictConfig()


def log_of(calls: list[tuple[int, bool]], before: int = 40, every_s: float = 0.1) -> CallLog:
    """`before` accepted calls at ever more open ones, then `calls` as (open before, refused), from instant 100 on."""
    log = CallLog()
    for number in range(before):
        log.sent(sent(f"b{number}", 90.0 + number * 0.1, number))
    for number, (open_before, refused) in enumerate(calls):
        at = 100.0 + number * every_s
        log.sent(sent(f"c{number}", at, open_before))
        if refused:
            log.answered(done(f"c{number}", at + 0.05, at, 429, open_before=open_before))
    return log


CAP = [(38, False), (39, False), (40, True), (39, False), (40, True), (40, True), (38, False)]
BLURRED_CAP = [(40, True), (39, False), (42, True), (40, False), (41, True), (41, False), (42, True), (40, False)]
RATE = [
    (38, False),
    (30, True),
    (40, False),
    (33, True),
    (41, False),
    (31, True),
    (44, False),
    (43, False),
    (45, False),
]
COLLAPSE = [(20, True), (19, True), (18, True), (18, True), (17, False), (16, True)]


@pytest.mark.parametrize(
    ("calls", "starting", "kind", "level"),
    [
        (CAP, False, Kind.CAP, 40),
        (BLURRED_CAP, False, Kind.CAP, 40),  # the order of arrival is not that of sending
        (BLURRED_CAP, True, Kind.CAP, 41),
        (RATE, False, Kind.RATE, 30),
        (COLLAPSE, False, Kind.COLLAPSE, 16),
        ([(40, False)] * 5, False, Kind.NOISE, 0),
    ],
)
def test_kinds(calls: list[tuple[int, bool]], starting: bool, kind: Kind, level: int) -> None:
    verdict = judge(CONFIG, log_of(calls), 100.0, starting=starting, may_be_rate=True, below=None)
    assert (verdict.kind, verdict.level) == (kind, level)


def test_what_cannot_be_a_rate_is_none() -> None:
    assert judge(CONFIG, log_of(RATE), 100.0, starting=False, may_be_rate=False, below=None).kind is not Kind.RATE


@pytest.mark.parametrize(("below", "kind"), [(41, Kind.CAP), (60, Kind.RATE)])
def test_a_level_that_fell_again_is_a_rate_unless_it_only_wandered(below: int, kind: Kind) -> None:
    assert judge(CONFIG, log_of(CAP), 100.0, starting=False, may_be_rate=True, below=below).kind is kind


@pytest.mark.parametrize(
    ("calls", "want"),
    [
        ([(38, False), (40, True)] * 4, 40),
        ([(38, False), (40, True)] * 3, 40),
        ([(38, False), (40, True)] * 2, None),  # too few
        ([(38, False), (40, True), (38, False), (41, True), (38, False), (40, True)], None),  # nearly alike, but few
        ([(38, False), (40, True), (39, False), (38, True)] * 2, 40),
        ([(38, False), (40, True), (39, False), (36, True)] * 2, None),  # not at one number
        ([(38, False), (40, True), (39, False), (37, True)] * 3, 40),  # nearly, and more often
        ([(38, False), (40, True), (39, False), (34, True)] * 3, None),
        ([(48, False), (40, True)] * 5, None),  # accepted far above
    ],
)
def test_a_cap_explains_the_refusals_of_a_rate(calls: list[tuple[int, bool]], want: int | None) -> None:
    log = log_of(calls, every_s=3.0)
    assert ceiling_of(log, 99.0, 200.0, feedback_s=0.5, rtt_s=1.0) == want
