"""An image beside a file of items is found from wherever the job is submitted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.test_images import PNG, a_job, app

__all__ = ["app"]


def test_a_files_images_lie_beside_it(app: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    here.mkdir()
    (there / "p.png").write_bytes(PNG)
    (there / "items.jsonl").write_bytes(orjson.dumps({"id": "i", "text": "t", "images": ["p.png"]}) + b"\n")
    monkeypatch.chdir(here)
    job = {**a_job(), "items": {"path": str(there / "items.jsonl")}}
    assert app.submit({**job, "id": "j"}) == "j"
