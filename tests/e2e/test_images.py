"""Items with images, in both dialects and batched: real workers, store, messages, HTTP and files."""

from __future__ import annotations

import hashlib
import json
import socket
from typing import Any

import pytest

from tests.domain.test_images import GIF, PNG, as_data

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def test_images_reach_all_judges_and_the_chief_from_the_jobs_folder_and_addresses_as_they_are(cluster: Any) -> None:
    one = cluster()
    (one.folder / "given").mkdir()
    (one.folder / "given" / "a.png").write_bytes(PNG)
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        nobody.setblocking(False)
        address = f"http://127.0.0.1:{nobody.getsockname()[1]}/x.png"
        talk = [
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": address}}]},
            {"role": "assistant", "content": "So.", "images": [as_data(GIF, "gif")]},
        ]  # fmt: skip
        rows = [{"id": "text", "text": "x", "images": ["a.png", address]}, {"id": "talk", "messages": talk}]
        (one.folder / "given" / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        job_id = one.submit({
            "items": {"path": str(one.folder / "given" / "items.jsonl")},
            "agents": [{"name": "o", "pool": "sim"}, {"name": "c", "pool": "claude"}, {"name": "head", "pool": "sim"}],
            "panel": {"chief": "head"},
            "dimensions": [{"id": f"d{n}", "instructions": "Is it so?"} for n in range(2)],
            "batching": True,
        })  # fmt: skip
        one.worker()
        report = one.report(job_id)
        assert (report["status"], report["units"], report["scored"], report["calls"]) == ("completed", 12, 12, 6)
        with pytest.raises(BlockingIOError):
            nobody.accept()
    asked = [json.loads(line) for line in (one.folder / "provider.jsonl").read_text().splitlines()]
    png, gif = (hashlib.sha256(data).hexdigest() for data in (PNG, GIF))
    assert sorted((call["dialect"], *call["images"]) for call in asked) == sorted(
        (dialect, *images)
        for dialect in ("anthropic", "openai", "openai")
        for images in ((address, gif), (png, address))
    )
    assert [o["judge"] for o in one.opinions(job_id) if o.get("dissent") is not None] == ["head"] * 4
    folder = one.results / job_id
    assert {path.name for path in (folder / "images").iterdir()} == {png, gif}
    assert "base64" not in (folder / "arranged.jsonl").read_text()
