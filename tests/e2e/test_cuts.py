"""The limit holds at a provider that goes on with calls that were cut: a few runs of `lab.chaos.cuts`, by its count."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.chaos.cuts import campaign

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_cut_calls_count_as_long_as_the_provider_may_work_on_them(tmp_path: Path) -> None:
    assert campaign(["drain", "remove-force", "kill"], seed=1, folder=tmp_path) == []


def test_the_campaign_notices_calls_beyond_the_limit(tmp_path: Path) -> None:
    """It is told of the provider what is not true."""
    (said,) = campaign(["drain"], seed=1, cut_frees=True, folder=tmp_path)
    assert said.endswith("calls were open, at most 8 may be")
