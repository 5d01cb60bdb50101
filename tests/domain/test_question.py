"""Which questions a job may ask, and how they are refused."""

import pytest

from dicast.app.domain.arrangement import arrangement_of
from dicast.app.domain.item import Item
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.plan import close_window
from dicast.app.domain.question import Question, next_look
from dicast.app.domain.refusals import InvalidJob, validated

TWO = [{"id": name, "instructions": "?", "scale": {"min": 1, "max": 5}} for name in ("good", "short")]


def a_job(question, dimensions=TWO[:1], **more):
    return validated({
        "id": "j", "items": [{"id": "i", "text": "t"}], "agents": [{"name": "a"}], "dimensions": dimensions,
        "question": question, **more,
    })  # fmt: skip


@pytest.mark.parametrize(
    "question, complaint",
    [
        ({}, "ask one of mean_at_least, share, difference, width, got none"),
        ({"mean_at_least": 3, "width": 0.2}, "got mean_at_least and width"),
        ({"mean_at_least": 6}, r"question.mean_at_least: must be from 1 to 5 \(scale of 'good'\), got 6"),
        ({"mean_at_least": float("nan")}, "mean_at_least"),
        ({"width": 0}, "width"),
        ({"width": 5}, "question.width: must be from 0 to 4"),
        ({"share": {"at_least_score": 4, "share_at_least": 80}}, "share_at_least"),
        ({"share": {"at_least_score": 9, "share_at_least": 0.8}}, "question.share.at_least_score: must be from 1 to 5"),
        ({"difference": {"by": "system", "of": ["a", "a"]}}, "two groups are compared, got 'a' twice"),
        ({"difference": {"by": "system", "of": ["a"]}}, "of"),
        (
            {"difference": {"by": "s", "of": ["a", "b"], "at_least": 4.5}},
            "question.difference.at_least: must be from -4",
        ),
        ({"dimension": "god", "mean_at_least": 3}, "'god' is no dimension of this job; did you mean 'good'?"),
        ({"mean_at_least": 3, "confidence": 1.0}, "confidence"),
        ({"mean_at_least": 3, "most_calls": 0}, "most_calls"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(question, complaint):
    with pytest.raises(InvalidJob, match=complaint):
        a_job(question)


def test_of_several_dimensions_one_is_named():
    with pytest.raises(InvalidJob, match=r"question.dimension: name one of good, short"):
        a_job({"mean_at_least": 3}, TWO)
    assert a_job({"dimension": "short", "mean_at_least": 3}, TWO).question_dimension == 1
    assert a_job({"mean_at_least": 3}).question_dimension == 0


def test_labels_without_an_order_have_no_mean_and_passing_has_a_share():
    topic = {"id": "topic", "instructions": "?", "scale": {"labels": ["law", "art"], "ordered": False}}
    with pytest.raises(InvalidJob, match="the labels of 'topic' have no order"):
        a_job({"mean_at_least": 0.5}, [topic])
    assert a_job({"mean_at_least": 0.8}, [{**topic, "scale": "pass_fail"}]).keeps_scoreboard


def test_items_are_shuffled_in_another_order_for_each_job_and_the_same_for_the_same():
    job = a_job({"difference": {"by": "system", "of": ["a", "b"]}})
    assert arrangement_of(job) == arrangement_of(job.model_copy(update={"metadata": {"run": 2}}))
    other = arrangement_of(job.model_copy(update={"id": "k"}))
    assert other.shuffle.seed != arrangement_of(job).shuffle.seed
    codes = [other.shuffle.group_code(Item(id="i", text="t", metadata=m)) for m in ({"system": "b"}, {}, {"system": 1})]
    assert codes == [1, 2, 2]
    assert not arrangement_of(EvaluationJob.model_validate({**job.model_dump(), "question": None})).needed


def test_questions_are_worded():
    asked = [
        Question(mean_at_least=4.2), Question(width=0.25),
        Question.model_validate({"share": {"at_least_score": 4, "share_at_least": 0.8}}),
    ]  # fmt: skip
    assert [question.sentence("faithfulness") for question in asked] == [
        "is the mean of faithfulness at least 4.2?",
        "what is the mean of faithfulness, to an interval no wider than 0.25?",
        "do at least 0.8 of the items have faithfulness of 4 or more?",
    ]


def test_looks_grow_rarer_so_that_all_of_them_cost_little():
    looks, seen = [], 25
    while seen < 1_000_000:
        looks.append(seen)
        seen = next_look(seen)
    assert looks[:3] == [25, 50, 75]
    assert len(looks) < 250


@pytest.mark.parametrize("limit, page_max, stride", [(1, 500, 1), (64, 500, 4), (64, 10, 4), (7, 2, 3)])
def test_the_window_of_a_job_that_may_end_holds_little_more_than_its_limit(limit, page_max, stride):
    size = close_window(limit=limit, page_max=page_max, stride=stride)
    assert size.low_water >= limit * stride, "or slots would be idle while the lane is planned again"
    assert size.units <= (1.5 * limit + 1) * stride
    assert size.page % stride == 0
    assert stride <= size.page <= max(page_max, stride)
