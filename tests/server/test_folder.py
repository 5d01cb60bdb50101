"""The uploads' folder: what is counted, how a large body is written, and where a body of other pieces ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dicast.app.server import parts
from dicast.app.server.errors import FolderFull
from dicast.app.server.parts import Uploads


async def body(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def test_a_body_is_written_in_pieces_and_never_held_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "PIECE_BYTES", 10)
    pieces: list[int] = []
    update = parts._Reserved.write

    def write(reserved: parts._Reserved, digest: Any, piece: bytes) -> None:
        pieces.append(len(piece))
        update(reserved, digest, piece)

    monkeypatch.setattr(parts._Reserved, "write", write)
    upload = await Uploads(tmp_path, 100, 1000).take(body(*[b"123456"] * 5), ".jsonl")
    assert pieces == [12, 12, 6]
    assert (upload.bytes, (tmp_path / upload.path).read_bytes()) == (30, b"123456" * 5)


async def test_a_folder_is_made_with_those_above_it(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b" / "uploads"
    found = await Uploads(folder, 100, 1000).take(body(b"x"), ".csv")
    assert (folder / found.path).read_bytes() == b"x"


async def test_what_lies_in_the_folder_counts_and_what_a_link_leads_to_does_not(tmp_path: Path) -> None:
    folder = tmp_path / "uploads"
    folder.mkdir()
    (tmp_path / "large").write_bytes(bytes(5000))
    (folder / "link").symlink_to(tmp_path / "large")
    held = len(str(tmp_path / "large"))
    uploaded = Uploads(folder, 10_000, held + 100)
    await uploaded.take(body(bytes(60)), ".jsonl")
    with pytest.raises(FolderFull):
        await uploaded.take(body(bytes(41)), ".jsonl")
    await uploaded.take(body(bytes(40)), ".jsonl")
    assert sorted(path.stat().st_size for path in folder.glob("[!.]*.jsonl")) == [40, 60]
