"""Bad ratings are named, all of them at once, before anything is computed."""

import numpy as np
import pandas as pd
import pytest

from dicast.app.analysis.ratings import RatingScale, RatingsError, check, replicates, table

SCALES = {"clarity": RatingScale(1, 5), "verdict": RatingScale(labels=("fail", "pass"))}
ITEMS = ["a", "b", "c"]


def frame(*rows: tuple[object, ...]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["item", "dimension", "rater", "score"])


def test_good_ratings_become_a_table_with_gaps():
    checked = check(
        frame(("a", "clarity", "Eva", 4), ("b", "clarity", "Adam", 2), ("a", "clarity", "Adam", None)), SCALES, ITEMS
    )
    assert checked.empty == 1
    seen = table(checked, "clarity", items=ITEMS)
    assert (seen.items, seen.raters) == (("a", "b", "c"), ("Adam", "Eva"))
    np.testing.assert_array_equal(seen.scores, [[np.nan, 4], [2, np.nan], [np.nan, np.nan]])
    assert seen.missing == pytest.approx(4 / 6)
    np.testing.assert_array_equal(seen.of(["Eva", "Nobody"]), [[4, np.nan], [np.nan, np.nan], [np.nan, np.nan]])


@pytest.mark.parametrize(
    "row, complaint",
    [
        (("z", "clarity", "Eva", 3), "1 unknown items, as z"),
        (("a", "beauty", "Eva", 3), "1 unknown dimensions, as beauty"),
        (("a", "clarity", "Eva", 6), "clarity: 1 scores are not whole numbers from 1 to 5, as 6"),
        (("a", "clarity", "Eva", 2.5), "clarity: 1 scores are not whole numbers from 1 to 5, as 2.5"),
        (("a", "clarity", "Eva", float("inf")), "as inf"),
        (("a", "clarity", "Eva", "good"), "as 'good'"),
        (("a", "clarity", "Eva", True), "as True"),
        (("a", "verdict", "Eva", "maybe"), "verdict: 1 scores are none of fail, pass, as 'maybe'"),
        (("a", "clarity", " ", 3), "1 ratings without a rater"),
    ],
)
def test_a_bad_rating_is_named(row, complaint):
    with pytest.raises(RatingsError) as caught:
        check(frame(row, ("b", "clarity", "Eva", 3)), SCALES, ITEMS)
    assert complaint in str(caught.value)


def test_all_problems_are_told_at_once():
    with pytest.raises(RatingsError) as caught:
        check(frame(("z", "clarity", "Eva", 9), ("a", "clarity", "Eva", 3), ("a", "clarity", "Eva", 4)), SCALES, ITEMS)
    assert len(caught.value.problems) == 3
    assert "1 ratings are there twice, as a, clarity, Eva" in caught.value.problems


def test_a_missing_column_is_named():
    with pytest.raises(RatingsError, match="the column rater is missing"):
        check(pd.DataFrame({"item": ["a"], "dimension": ["clarity"], "score": [1]}), SCALES, ITEMS)


def test_labels_are_their_places_and_fractions_are_allowed_where_the_scale_has_them():
    checked = check(frame(("a", "verdict", "Eva", "pass"), ("b", "verdict", "Eva", "fail")), SCALES, ITEMS)
    assert checked.frame["score"].tolist() == [1.0, 0.0]
    assert (
        check(frame(("a", "share", "Eva", 0.25)), {"share": RatingScale(0, 1, whole=False)}, ITEMS).frame["score"][0]
        == 0.25
    )


def test_replicates_are_averaged_or_taken_apart():
    rows = frame(("a", "clarity", "judge", 2), ("a", "clarity", "judge", 5), ("b", "clarity", "judge", 3))
    checked = check(rows.assign(replicate=[0, 1, 0]), SCALES, ITEMS)
    np.testing.assert_array_equal(table(checked, "clarity").scores, [[3.5], [3]])
    np.testing.assert_array_equal(table(checked, "clarity", replicate=1).scores, [[5]])
    np.testing.assert_array_equal(replicates(checked, "clarity", "judge"), [[2, 5], [3, np.nan]])


def test_a_dimension_that_nobody_rated_is_an_empty_table():
    checked = check(frame(("a", "clarity", "Eva", 4)), SCALES, ITEMS)
    assert table(checked, "verdict", items=ITEMS).scores.shape == (3, 0)
    assert table(checked, "verdict").missing == 0


@pytest.mark.parametrize("replicate", [None, -1, 0.5, "second"])
def test_replicates_are_numbered(replicate):
    rows = frame(("a", "clarity", "judge", 2), ("b", "clarity", "judge", 3))
    with pytest.raises(RatingsError, match="a replicate is no whole number from 0"):
        check(rows.assign(replicate=[0, replicate]), SCALES, ITEMS)


def test_an_item_has_one_row():
    checked = check(frame(("a", "clarity", "Eva", 4)), SCALES, ITEMS)
    with pytest.raises(ValueError, match="named twice"):
        table(checked, "clarity", items=["a", "a"])


def test_items_may_be_named_by_numbers():
    checked = check(frame((7, "clarity", "Eva", 4), (8, "clarity", "Eva", 2)), SCALES, [7, 8, 9])
    np.testing.assert_array_equal(table(checked, "clarity", items=[8, 7, 9]).scores, [[2], [4], [np.nan]])


def test_a_scale_has_two_levels_or_more():
    with pytest.raises(ValueError, match="two levels"):
        RatingScale(labels=("only",))
    assert RatingScale(1, 5).levels.tolist() == [1, 2, 3, 4, 5]
