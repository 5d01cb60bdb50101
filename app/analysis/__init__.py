"""Statistics of ratings and scores: pure functions, and what a job's report tells of its judges.

The libraries that they need are an extra; whoever needs to know whether it is installed asks here, which loads none.
"""

from __future__ import annotations

from importlib.util import find_spec

from dicast.errors import DicastError, Exit

SCORES = "scores"
"""The extra that installs the libraries."""
LIBRARIES = ("numpy", "scipy", "pandas", "statsmodels", "sklearn", "krippendorff", "choix", "threadpoolctl")
INSTALL = f"pip install -e '.[{SCORES}]'"
MISSING = f"the libraries for statistics are not installed here: {INSTALL}"


class NoLibraries(DicastError, ImportError):
    """The extra `scores` is not installed."""

    exit_code = Exit.FAILED


def has_libraries() -> bool:
    """Return whether all libraries that statistics may need are installed."""
    return all(find_spec(name) is not None for name in LIBRARIES)
