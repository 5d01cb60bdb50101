"""The published page is what the program makes of the published figures, and of nothing else."""

from __future__ import annotations

import json

from lab.bench.__main__ import DOCS, PUBLISHED, page


def test_the_page_follows_from_its_raw_figures() -> None:
    published = json.loads(PUBLISHED.read_text())
    assert (DOCS / "benchmarks.md").read_text() == page(published["machine"], published["runs"])


def test_every_picture_is_there() -> None:
    text = (DOCS / "benchmarks.md").read_text()
    pictures = [line.rpartition("(")[2].rstrip(")") for line in text.splitlines() if line.startswith("![")]
    assert pictures
    assert all((DOCS / picture).exists() for picture in pictures)
