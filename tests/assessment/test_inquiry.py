"""What scores say to a job's question: yes, no, known, spent or still open, never a number that means nothing."""

import math

import numpy as np
import pytest

from dicast.app.analysis.sequences import answer_of, interim_mean
from dicast.app.domain.question import Question

SCALE = (1, 5)


def scores(mean, count=400, seed=1):
    rng = np.random.default_rng(seed)
    return np.clip(np.round(mean + rng.normal(size=count)), *SCALE).tolist()


@pytest.mark.parametrize(
    "question, given, population, state, about",
    [
        ({"mean_at_least": 3.5}, scores(4)[:150], 400, "yes", 3.95),
        ({"mean_at_least": 4.4}, scores(4)[:150], 400, "no", 3.95),
        ({"mean_at_least": 3.9}, scores(4)[:50], 400, "open", None),
        ({"width": 1}, scores(3)[:200], 400, "known", 3.0),
        ({"width": 0.1}, scores(3)[:50], 400, "open", None),
        ({"share": {"at_least_score": 4, "share_at_least": 0.4}}, scores(4)[:150], 400, "yes", 0.7),
        ({"share": {"at_least_score": 5, "share_at_least": 0.8}}, scores(4)[:150], 400, "no", 0.3),
    ],
)
def test_what_is_asked_is_answered(question, given, population, state, about):
    answer = answer_of(Question.model_validate(question), "good", SCALE, given, population)
    assert answer.state == state
    assert (answer.items, answer.missing, answer.population) == (len(given), 0, population)
    if about is None:
        assert answer.value is answer.low is answer.high is None
    else:
        assert answer.low <= answer.value <= answer.high
        assert answer.value == pytest.approx(about, abs=0.15)


def test_pairs_are_compared_and_one_without_a_score_is_no_pair():
    better, worse = scores(4, seed=1), scores(3, seed=2)
    given = [score for pair in zip(better, worse, strict=True) for score in pair]
    given[1] = given[2] = math.nan
    question = Question.model_validate({"difference": {"by": "system", "of": ["a", "b"], "at_least": 0.3}})
    answer = answer_of(question, "good", SCALE, given[:301], 400)
    assert (answer.state, answer.items, answer.missing, answer.population) == ("yes", 148, 2, 400)
    assert answer.value == pytest.approx(0.85, abs=0.25)
    assert answer.question == "is a better than b by at least 0.3 in good?"
    assert answer_of(question, "good", SCALE, [4.0], 400).state == "open"


def test_all_items_make_it_exact_and_none_say_nothing():
    asked = Question(mean_at_least=3.0)
    assert answer_of(asked, "good", SCALE, [3.0, 2.0, 4.0], 3).state == "yes"
    assert answer_of(asked, "good", SCALE, [3.0, 2.0, 3.0, math.nan], 4).state == "no"
    nothing = answer_of(asked, "good", SCALE, [math.nan, math.nan], 2, ended=True)
    assert (nothing.state, nothing.value, nothing.items, nothing.missing) == ("open", None, 0, 2)
    assert "cannot be said, because nothing has a score" in nothing.sentence()


def test_an_end_before_the_answer_tells_how_far_it_was():
    asked, given = Question(mean_at_least=3.9), scores(4)[:50]
    spent = answer_of(asked, "good", SCALE, given, 400, spent=True, ended=True)
    assert spent.state == "spent"
    assert spent.low < 3.9 < spent.high
    assert "Not answered: its calls are spent; 3." in spent.sentence()
    cancelled = answer_of(asked, "good", SCALE, given, 400, ended=True)
    assert cancelled.state == "open"
    assert (cancelled.low, cancelled.high) == (spent.low, spent.high)


def test_more_confidence_needs_more_items():
    given = scores(4)
    states = [
        answer_of(Question(mean_at_least=3.5, confidence=confidence), "good", SCALE, given[:50], 400).state
        for confidence in (0.8, 0.9999)
    ]
    assert states == ["yes", "open"]


def test_an_interim_mean_holds_at_all_looks_together():
    """Of all items that there are; it is exact once they are all judged."""
    rng, population, missed = np.random.default_rng(3), 60, 0
    for _ in range(40):
        scores = rng.choice([1.0, 2.0, 4.5, 5.0], population, p=[0.2, 0.3, 0.2, 0.3])
        looks = [interim_mean(scores[:count], (1, 5), population) for count in range(10, population + 1, 10)]
        assert looks[-1].low == looks[-1].high == looks[-1].value == pytest.approx(scores.mean())
        missed += any(not look.low <= scores.mean() <= look.high for look in looks)
    assert missed <= 6
