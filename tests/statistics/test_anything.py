"""Whatever the ratings are, an answer is a number with an interval or a reason: no exception, no warning, no NaN."""

import ast
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import dicast.app.analysis
from dicast.app.analysis.agreement import inter_rater_agreement, judge_with_people, person_with_others
from dicast.app.analysis.calibration import cross_fitted
from dicast.app.analysis.combining import COMBINATIONS, effective_judges, learned_weights
from dicast.app.analysis.estimates import Estimate, Unknown
from dicast.app.analysis.groups import compare_groups
from dicast.app.analysis.means import mean
from dicast.app.analysis.panels import search
from dicast.app.analysis.powered import powered_difference, powered_mean, powered_share
from dicast.app.analysis.preferences import bradley_terry, position, win_rate
from tests.statistics.worlds import LEVELS

PACKAGE = Path(dicast.app.analysis.__file__).parent


def matrices(values):
    shape = st.tuples(st.integers(0, 30), st.integers(1, 4))
    return shape.flatmap(lambda size: arrays.arrays(np.float64, size, elements=st.sampled_from(values)))


few_levels = matrices([np.nan, 1.0, 5.0])
levels = matrices([np.nan, np.nan, *LEVELS])
anything = st.one_of(few_levels, levels)


def answers(found):
    """All answers inside, however deep."""
    if isinstance(found, Estimate | Unknown):
        return [found]
    if isinstance(found, tuple):
        return [answer for part in found for answer in answers(part)]
    return [a for name in getattr(found, "__dataclass_fields__", ()) for a in answers(getattr(found, name))]


@settings(max_examples=60)
@given(anything, st.sampled_from(["nominal", "ordinal", "interval"]))
def test_agreement(scores, level):
    rng = np.random.default_rng(0)
    judge, people = scores[:, 0], scores[:, 1:]
    found = (
        inter_rater_agreement(scores, level, LEVELS, rng),
        judge_with_people(judge, people, level, LEVELS, rng),
        person_with_others(people, level, LEVELS, rng),
        effective_judges(scores[:, :2], people, rng),
    )
    assert len(answers(found)) == 4 + 7 + 7 + 1
    judge_with_people(judge, people, "interval", None, rng)


@settings(max_examples=60)
@given(anything)
def test_estimation(scores):
    judges, people = scores[:, 0], scores[:, -1]
    found = (
        mean(people),
        mean(scores.ravel(), clusters=np.repeat(np.arange(len(scores)), scores.shape[1])),
        powered_mean(judges, people),
        powered_share(judges, people, 3.0),
        powered_difference((judges, people), (people, judges), paired=True),
        powered_difference((judges, people), (people, judges), paired=False),
        win_rate((people - 1) / 4),
    )
    assert len(answers(found)) >= 2 + 4 * 2 + 1


@settings(max_examples=40)
@given(anything)
def test_the_rest(scores):
    rng = np.random.default_rng(0)
    people = scores[:, -1]
    item, rater = np.indices(scores.shape)
    answers(compare_groups(scores.ravel(), rater.ravel().astype(str), item.ravel(), rng))
    answers(search(scores, people, np.ones(scores.shape[1]), rng, largest=2))
    cross_fitted(scores[:, 0], people, "isotonic", rng)
    assert learned_weights(scores, people).sum() > 0.99
    first = rng.integers(0, 3, len(scores))
    answers(bradley_terry(first, (first + 1) % 3, np.round((people - 1) / 4), np.arange(len(scores)), rng))
    answers(position((people - 1) // 4, (scores[:, 0] - 1) // 4))
    for combine in COMBINATIONS.values():
        np.testing.assert_array_equal(np.isnan(combine(scores)), np.isnan(scores).all(axis=1))


def project_imports(source):
    tree = ast.walk(ast.parse(source.read_text()))
    modules = {node.module for node in tree if isinstance(node, ast.ImportFrom) and node.module}
    return {name for name in modules if name.split(".")[0] == "dicast"}


@pytest.mark.parametrize("module", [
    "agreement", "calibration", "estimates", "groups", "means", "powered", "preferences", "ratings", "resampling",
    "sampling",
])  # fmt: skip
def test_what_programs_use_knows_nothing_of_jobs(module):
    own = dicast.app.analysis.__name__
    assert all(name.startswith(own) for name in project_imports(PACKAGE / f"{module}.py"))


def test_the_package_knows_nothing_of_stores_and_prompts():
    known = ("dicast.app.analysis", "dicast.app.domain", "dicast.errors")
    for source in PACKAGE.glob("*.py"):
        assert all(name.startswith(known) for name in project_imports(source)), source.name


def test_its_former_name_goes_on_working():
    program = (
        "import warnings; warnings.simplefilter('ignore', DeprecationWarning)\n"
        "from dicast.app.statistics.agreement import judge_with_people\n"
        "from dicast.app.statistics.combining import combine_mean\n"
        "from dicast.app.statistics.powered import powered_mean\n"
        "from dicast.app.statistics.preferences import bradley_terry\n"
        "from dicast.app.statistics.ratings import RatingScale, check, table\n"
        "import dicast.app.analysis.agreement, dicast.app.statistics.powered\n"
        "assert dicast.app.statistics.powered.powered_mean is powered_mean\n"
        "assert judge_with_people is dicast.app.analysis.agreement.judge_with_people"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_package_alone_imports_no_heavy_library():
    heavy = "('numpy', 'scipy', 'pandas')"
    loaded = f"import sys, dicast.app.analysis; sys.exit(any(m in sys.modules for m in {heavy}))"
    assert subprocess.run([sys.executable, "-c", loaded], check=False).returncode == 0
