"""Families of models: whose texts are whose, and how a judge's bias for its own is computed, against the definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.stats

from dicast.app.analysis.biases import _among_judges, _is_own_family, _shortage, _with_people, effect_beside_people
from dicast.app.analysis.estimates import Estimate, Unknown
from dicast.app.analysis.scores import DimensionScores, Labels, People
from dicast.app.domain.probes import SelfPreference
from dicast.app.domain.report import ReportAgent
from dicast.app.reports.scores import _kinship
from tests.assessment.test_assess import dimension
from tests.reports.building import header

NAN = float("nan")


def agent(name: str, model: str | None) -> ReportAgent:
    return ReportAgent(name=name, persona="", pool="p", model=model, temperature=None)


def families(names: tuple[str, ...], codes: list[int], own: dict[str, str], *agents: ReportAgent) -> Any:
    probe = SelfPreference(probe="self_preference", families=own)
    report = header(1).model_copy(update={"agents": list(agents)})
    found = _kinship(Labels(names, np.array(codes)), probe, report)
    return found.authors.names, found.authors.codes.tolist(), found.judges


def test_families_are_named_by_the_job_or_derived_from_models() -> None:
    """Two authors of one family are one, and a text without an author, or of an unknown one, is of none."""
    authors, codes, judges = families(
        ("gpt-4o", "someone", "claude-opus", "gpt-4.1", "us"), [0, 1, 2, 3, 4, -1, 0], {"us": "ours", "x": "claude"},
        agent("x", "gpt-4o"), agent("y", "gpt-4o"), agent("z", "nobody-knows"), agent("u", None), agent("v", "us"),
    )  # fmt: skip
    assert authors == ("openai", "anthropic", "ours")
    assert codes == [0, -1, 1, 0, 2, -1, 0]
    assert judges == ("claude", "openai", None, None, "ours")


def test_no_known_author_leaves_no_family() -> None:
    assert families(("someone",), [0, -1, 0], {}, agent("x", "gpt-4o"))[:2] == ((), [-1, -1, -1])


def test_a_text_is_of_the_family_of_another_or_unknown() -> None:
    codes, names = np.array([0, 1, -1, 1]), ("a", "b")
    np.testing.assert_array_equal(_is_own_family(codes, names, "a"), [1, 0, NAN, 0])
    np.testing.assert_array_equal(_is_own_family(codes, names, "b"), [0, 1, NAN, 1])
    for elsewhere in ("c", None):
        np.testing.assert_array_equal(_is_own_family(codes, names, elsewhere), [0, 0, NAN, 0])


@pytest.mark.parametrize("own, others, enough", [(10, 10, True), (9, 10, False), (10, 9, False), (0, 30, False)])
def test_it_takes_ten_texts_of_each(own: int, others: int, enough: bool) -> None:
    scores = np.concatenate([np.ones(own + others), [NAN, 1.0]])
    is_own = np.concatenate([np.ones(own), np.zeros(others), [1.0, NAN]])
    told = _shortage(scores, is_own)
    assert (told is None) == enough
    assert told is None or told.endswith(f"as many of others, and there are {own} and {others}")


def test_against_people_it_is_of_texts_that_both_have_scored_and_whose_author_is_known() -> None:
    """People rated all but the first two; nobody rated the next, whose author, or whose score, is unknown."""
    rng = np.random.default_rng(1)
    people = rng.normal(5, 1, (38, 2))
    people[0] = NAN
    people[3, 1] = NAN  # one rater is enough
    judge, is_own = people.mean(axis=1) + rng.normal(0, 1, 38), (np.arange(38) % 2).astype(float)
    judge, is_own = np.concatenate([[9.0, 9.0], judge]), np.concatenate([[1.0, 0.0], is_own])
    judge[5 + 2] = NAN
    is_own[6 + 2] = NAN
    rated = People(np.arange(2, 40), ("ada", "ben"), people)
    clean = [row for row in range(38) if row not in (0, 5, 6)]
    judge[3 + 2] = people[3, 0] + 0.5
    wanted = effect_beside_people(is_own[2:][clean], judge[2:][clean], people[clean])
    found, p = _with_people(judge, is_own, DimensionScores(dimension(0, 10), judge[:, None, None], rated))
    assert isinstance(found, Estimate) and found.items == 35
    assert (found, p) == wanted
    by_the_same = np.concatenate([[9.0, 9.0], np.nanmean(people[1:], axis=1, keepdims=True)[:, 0] + 1])
    by_the_same = np.insert(by_the_same, 2, 7.0)
    same = _with_people(by_the_same, is_own, DimensionScores(dimension(0, 10), by_the_same[:, None, None], rated))
    assert isinstance(same[0], Unknown) and "by the same on all texts" in same[0].reason and same[1] is None


def by_definition(scores: Any, is_own: Any) -> tuple[list[float], list[float], int]:
    """Least squares with a column for each item, and errors clustered by item."""
    usable = ~(np.isnan(scores) | np.isnan(is_own))
    usable[usable.sum(axis=1) < 2] = False
    cells = [(i, j) for i, j in zip(*np.nonzero(usable), strict=True)]
    items, judges = sorted({i for i, _ in cells}), scores.shape[1]
    rows = []
    for i, j in cells:
        adds = [is_own[i, j] if j == k else 0.0 for k in range(judges)]
        gives = [1.0 if j == k else 0.0 for k in range(1, judges)]
        rows.append(adds + gives + [1.0 if i == k else 0.0 for k in items])
    x, y = np.array(rows), np.array([scores[i, j] for i, j in cells])
    inverse = np.linalg.inv(x.T @ x)
    beta = inverse @ x.T @ y
    left, count = y - x @ beta, len(items)
    meat = np.zeros_like(inverse)
    for k in items:
        mine = [n for n, (i, _) in enumerate(cells) if i == k]
        score = x[mine].T @ left[mine]
        meat += np.outer(score, score)
    factor = count / (count - (2 * judges - 1) - 1)
    error = np.sqrt(np.diag(inverse @ meat @ inverse) * factor)
    return beta[:judges].tolist(), error[:judges].tolist(), count


def test_among_judges_it_is_least_squares_clustered_by_item() -> None:
    rng = np.random.default_rng(2)
    codes = rng.integers(0, 4, 40)  # texts of a fourth family are nobody's own
    is_own = np.stack([(codes == k).astype(float) for k in range(3)], axis=1)
    is_own[0] = NAN
    scores = rng.normal(0, 1, (40, 1)) + np.array([0.0, 0.7, -0.3]) + is_own * np.array([0.8, 0.0, -0.4])
    scores += rng.normal(0, 0.5, scores.shape)
    scores[1, 0] = NAN
    scores[2, 1:] = NAN  # one judge alone says nothing of the others
    found, (values, errors, count) = _among_judges(scores, is_own), by_definition(scores, is_own)
    assert sorted(found) == [0, 1, 2] and count == 38
    for judge, (value, error) in enumerate(zip(values, errors, strict=True)):
        estimate, p = found[judge]
        assert isinstance(estimate, Estimate) and estimate.items == 38
        assert estimate.value == pytest.approx(value)
        assert estimate.high - estimate.value == pytest.approx(scipy.stats.t.ppf(0.975, 37) * error)
        assert estimate.value - estimate.low == pytest.approx(scipy.stats.t.ppf(0.975, 37) * error)
        assert p == pytest.approx(2 * scipy.stats.t.sf(abs(value) / error, 37))


@pytest.mark.parametrize("items, known", [(7, False), (8, True)])
def test_among_judges_it_takes_more_items_than_unknowns(items: int, known: bool) -> None:
    """Two judges have three unknowns, and three items more have to be left."""
    rng = np.random.default_rng(3)
    is_own = np.stack([np.arange(items) % 3 == k for k in (0, 1)], axis=1).astype(float)
    assert bool(_among_judges(rng.normal(0, 1, (items, 2)), is_own)) == (items > 3 + 2)
    three = np.stack([np.arange(items) % 4 == k for k in (0, 1, 2)], axis=1).astype(float)
    assert bool(_among_judges(rng.normal(0, 1, (items, 3)), three)) == known


def test_a_judge_alone_has_nobody_to_be_held_against() -> None:
    assert _among_judges(np.ones((20, 1)), np.ones((20, 1))) == {}
    apart = np.array([[1.0, NAN], [NAN, 2.0]] * 20)
    assert _among_judges(apart, np.ones((40, 2))) == {}
