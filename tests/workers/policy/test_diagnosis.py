"""What an episode of refusals means."""

from __future__ import annotations

import pytest

from dicast.workers.policy.calls import CallLog
from dicast.workers.policy.diagnosis import Cause, DiagnosisConfig, ceiling_of, episode_start, is_enough, judge, wander
from tests.workers.policy.build import done, sent

CONFIG = DiagnosisConfig()


def log_of(calls: list[tuple[int, bool]], before: int = 40, every_s: float = 0.1) -> CallLog:
    """`before` accepted calls at ever more open ones, then `calls` as (open before, refused), from instant 100 on."""
    log = CallLog()
    for number in range(before):
        log.sent(sent(f"b{number}", 90.0 + number * 0.1, number))
    for number, (open_before, refused) in enumerate(calls):
        at = 100.0 + number * every_s
        log.sent(sent(f"c{number}", at, open_before))
        if refused:
            log.record_outcome(done(f"c{number}", at + 0.05, at, 429, open_before=open_before))
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
        (CAP, False, Cause.CAP, 40),
        (BLURRED_CAP, False, Cause.CAP, 40),  # the order of arrival is not that of sending
        (BLURRED_CAP, True, Cause.CAP, 41),
        (RATE, False, Cause.RATE, 30),
        (COLLAPSE, False, Cause.COLLAPSE, 16),
        ([(40, False)] * 5, False, Cause.NOISE, 0),
    ],
)
def test_kinds(calls: list[tuple[int, bool]], starting: bool, kind: Cause, level: int) -> None:
    diagnosis = judge(CONFIG, log_of(calls), 100.0, starting=starting, may_be_rate=True, below=None)
    assert (diagnosis.kind, diagnosis.level) == (kind, level)


@pytest.mark.parametrize(("accepted", "kind"), [(6, Cause.RATE), (8, Cause.RATE), (12, Cause.NOISE), (40, Cause.NOISE)])
def test_few_refusals_of_a_first_episode_come_by_chance(accepted: int, kind: Cause) -> None:
    """An empty bucket refuses most of what slow start sends on."""
    calls = [(30, True), *((40 + number % 3, False) for number in range(accepted)), (30, True)]
    assert judge(CONFIG, log_of(calls), 100.0, starting=True, may_be_rate=True, below=None).kind is kind


def test_what_cannot_be_a_rate_is_none() -> None:
    assert judge(CONFIG, log_of(RATE), 100.0, starting=False, may_be_rate=False, below=None).kind is not Cause.RATE


@pytest.mark.parametrize(("below", "kind"), [(41, Cause.CAP), (60, Cause.RATE)])
def test_a_level_that_fell_again_is_a_rate_unless_it_only_wandered(below: int, kind: Cause) -> None:
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
        ([(40, True), (48, False), *[(38, False), (40, True)] * 4], None),  # right after the first refusal
        ([(40, True), (40, True), (38, False), (40, True)], 40),  # few, and far apart
        ([*[(38, False), (40, True)] * 5, (30, True)], None),  # one is far below
        ([*([(38, False)] * 10 + [(40, True)]) * 6, (48, False)], 40),  # one of sixty is chance
    ],
)
def test_a_cap_explains_the_refusals_of_a_rate(calls: list[tuple[int, bool]], want: int | None) -> None:
    log = log_of(calls, every_s=3.0)
    assert ceiling_of(log, 99.0, 200.0, feedback_s=0.5, rtt_s=1.0) == want


@pytest.mark.parametrize(("level", "by"), [(0, 0), (9, 0), (10, 1), (19, 1), (20, 2), (500, 2)])
def test_numbers_wander_with_their_size(level: int, by: int) -> None:
    assert wander(level) == by


def test_an_episode_begins_with_the_first_refused_call() -> None:
    log = log_of([(1, False), (1, True), (1, False), (1, True)])
    assert episode_start(log, 100.0) == pytest.approx(100.1)
    assert episode_start(log, 100.2) == pytest.approx(100.3)
    assert episode_start(log, 100.35) == 100.35
    for trial in log.trials:
        trial.forgiven = trial.sent_at < 100.2
    assert episode_start(log, 99.0) == pytest.approx(100.3)


@pytest.mark.parametrize(("accepted", "refused", "needed", "enough"), [
    (0, 2, 2, True), (0, 1, 2, False),
    (38, 2, 2, True), (39, 2, 2, False),  # 5 % of them
    (0, 3, 5, True), (13, 3, 5, True), (14, 3, 5, False),  # or three of the last sixteen
    (0, 2, 5, False),
    (0, 7, 9, True), (9, 7, 9, True), (10, 7, 9, False), (0, 6, 9, False),  # seven, where nine are needed
])  # fmt: skip
def test_refusals_deserve_a_verdict_by_their_number_and_share(
    accepted: int, refused: int, needed: int, enough: bool
) -> None:
    """The refused ones were sent first, so that the others are the last ones."""
    log = log_of([(5, True)] * refused + [(5, False)] * accepted, before=0)
    assert is_enough(log, 99.0, 200.0, feedback_s=0.5, needed=needed) is enough


def test_calls_that_may_be_refused_yet_and_forgiven_ones_do_not_count() -> None:
    log = log_of([(5, True)] * 2 + [(5, False)] * 60, before=0)
    assert not is_enough(log, 99.0, 200.0, feedback_s=0.5, needed=2)
    assert is_enough(log, 99.0, 100.7, feedback_s=0.5, needed=2), "only those sent before 100.2 are known"
    log.trials[0].forgiven = True
    assert not is_enough(log, 99.0, 100.7, feedback_s=0.5, needed=2)
    assert not is_enough(log, 100.0, 100.7, feedback_s=0.5, needed=2), "only later ones are looked at"


def diagnosis_of(calls: list[tuple[int, bool]], before: int = 0, **changes: object) -> tuple[Cause, int]:
    how: dict[str, object] = {"starting": True, "may_be_rate": True, "below": None, **changes}
    diagnosis = judge(CONFIG, log_of(calls, before), 100.0, **how)  # type: ignore[arg-type]
    return diagnosis.kind, diagnosis.level


@pytest.mark.parametrize(("accepted", "kind"), [(6, Cause.CAP), (7, Cause.RATE)])
def test_a_cap_refuses_most_of_what_comes_at_its_number(accepted: int, kind: Cause) -> None:
    """Six of eleven are less than 55 %, seven of twelve more."""
    assert diagnosis_of([(4, True)] * 5 + [(4, False)] * accepted, starting=False)[0] is kind


@pytest.mark.parametrize(("accepted", "kind"), [(2, Cause.CAP), (3, Cause.RATE)])
def test_three_accepted_clearly_above_are_a_rate(accepted: int, kind: Cause) -> None:
    assert diagnosis_of([(50, True)] * 4 + [(60, False)] * accepted, starting=False)[0] is kind


@pytest.mark.parametrize(("number", "kind"), [(58, Cause.CAP), (59, Cause.RATE)])
def test_in_slow_start_a_tenth_more_is_not_clearly_above(number: int, kind: Cause) -> None:
    """Above 1.12 of the lower quartile, and two."""
    assert diagnosis_of([(50, True)] * 4 + [(number, False)] * 3, starting=True)[0] is kind


@pytest.mark.parametrize(("refused", "kind"), [(11, Cause.CAP), (12, Cause.COLLAPSE)])
def test_a_collapse_refuses_three_fifths(refused: int, kind: Cause) -> None:
    calls = [(5, True)] * refused + [(4, False)] * (20 - refused)
    assert diagnosis_of(calls, before=40, starting=False)[0] is kind


@pytest.mark.parametrize(("level", "starting", "kind"), [
    (35, False, Cause.COLLAPSE), (36, False, Cause.CAP),  # with two that it may wander below 95 % of 39
    (29, True, Cause.COLLAPSE), (30, True, Cause.CAP),  # below 80 %
])  # fmt: skip
def test_a_collapse_lies_clearly_below_what_was_held(level: int, starting: bool, kind: Cause) -> None:
    found = diagnosis_of([(level, True)] * 5, before=40, starting=starting)
    assert found == (kind, level)
    assert diagnosis_of([(level, True)] * 4, before=40, starting=starting)[0] is Cause.CAP, "too few to prove it"


@pytest.mark.parametrize(("starting", "noise", "level"), [(False, 0.0, 40), (True, 0.0, 42), (False, 0.1, 44)])
def test_one_low_number_may_be_noise_where_some_is_known_or_all_is_blurred(
    starting: bool, noise: float, level: int
) -> None:
    calls = [(number, True) for number in (40, 42, 44, 46)]
    assert diagnosis_of(calls, starting=starting, noise=noise, may_be_rate=False) == (Cause.CAP, level)


@pytest.mark.parametrize(("refused", "kind"), [(4, Cause.NOISE), (5, Cause.CAP)])
def test_up_to_two_and_a_half_times_the_known_noise_is_noise(refused: int, kind: Cause) -> None:
    calls = [(4, True)] * refused + [(4, False)] * (20 - refused)
    assert diagnosis_of(calls, noise=0.1, may_be_rate=False)[0] is kind


@pytest.mark.parametrize(("refused", "kind"), [(5, Cause.NOISE), (6, Cause.RATE)])
def test_refusals_that_are_rare_are_noise(refused: int, kind: Cause) -> None:
    """Fewer than six in the last sixty calls, and than 4 % of all."""
    calls = [(4, True)] * refused + [(4, False)] * 40
    assert diagnosis_of(calls, before=150, starting=False)[0] is kind


@pytest.mark.parametrize(("before", "kind"), [(57, Cause.RATE), (58, Cause.NOISE)])
def test_refusals_that_are_rare_are_so_in_the_whole_log(before: int, kind: Cause) -> None:
    """Four in less than a hundred are not."""
    calls = [(4, True)] * 4 + [(4, False)] * 39
    assert diagnosis_of(calls, before=before, starting=False)[0] is kind


@pytest.mark.parametrize(("refused_at", "kind"), [(57, Cause.CAP), (56, Cause.RATE)])
def test_a_level_that_fell_by_a_twentieth_is_a_rate(refused_at: int, kind: Cause) -> None:
    calls = [(refused_at, True)] * 3 + [(20, False)] * 3
    assert diagnosis_of(calls, below=62)[0] is kind
    assert diagnosis_of([*calls[:3], *calls[4:]], below=62)[0] is Cause.CAP, "nothing was accepted, or next to nothing"


def test_refusals_within_a_round_trip_are_one() -> None:
    log = log_of([(38, False), (40, True)] * 8, every_s=0.1)
    assert ceiling_of(log, 99.0, 200.0, feedback_s=0.5, rtt_s=1.0) is None
    assert ceiling_of(log, 99.0, 200.0, feedback_s=0.5, rtt_s=0.1) == 40


def test_a_call_of_the_episode_itself_was_not_held_before_it() -> None:
    assert diagnosis_of([(60, False), *[(40, True)] * 5], starting=False) == (Cause.CAP, 40)


def test_noise_tells_the_least_number_that_was_refused() -> None:
    calls = [(6, True), (4, True), (5, True), *[(7, False)] * 17]
    assert diagnosis_of(calls, noise=0.1, may_be_rate=False) == (Cause.NOISE, 4)
    assert diagnosis_of(calls, before=150, starting=False) == (Cause.NOISE, 4)


@pytest.mark.parametrize("level", [0, 1])
def test_a_cap_leaves_one_call(level: int) -> None:
    assert diagnosis_of([(level, True)] * 3, starting=False) == (Cause.CAP, 1)


def test_clearly_above_is_above_the_lower_quartile() -> None:
    """Of eight refused ones the third least: 50, so that more than 53 is clearly above."""
    refused = [(number, True) for number in (40, 40, 50, 50, 60, 60, 60, 60)]
    assert diagnosis_of([*refused, *[(53, False)] * 3], starting=False)[0] is Cause.CAP
    assert diagnosis_of([*refused, *[(54, False)] * 3], starting=False)[0] is Cause.RATE


def test_only_the_last_sixty_calls_are_lately() -> None:
    calls = [(4, True), *[(4, False)] * 55, *[(4, True)] * 5]
    assert diagnosis_of(calls, before=150, starting=False)[0] is Cause.NOISE
    assert diagnosis_of([calls[0], *calls[2:]], before=150, starting=False)[0] is Cause.RATE


def test_five_refusals_need_not_lie_far_apart() -> None:
    log = log_of([(40, True)] * 5, every_s=0.9)
    assert ceiling_of(log, 99.0, 200.0, feedback_s=0.5, rtt_s=0.899) == 40
    log = log_of([(40, True)] * 4, every_s=0.9)
    assert ceiling_of(log, 99.0, 200.0, feedback_s=0.5, rtt_s=0.899) is None


def test_calls_that_may_be_refused_yet_disprove_no_cap() -> None:
    log = log_of([*[(38, False), (40, True)] * 4, *[(48, False)] * 4], every_s=3.0)
    last = log.trials[-1].sent_at
    assert ceiling_of(log, 99.0, last - 8.5, feedback_s=0.5, rtt_s=1.0) == 40
    assert ceiling_of(log, 99.0, last + 0.6, feedback_s=0.5, rtt_s=1.0) is None
