"""Files over HTTP: stored once and whole, and no job reaches another file."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import httpx2
import pytest

from dicast.app.application import Dicast
from dicast.app.server.errors import FileRefused
from dicast.app.server.uploads import Uploads
from tests.server.serving import JOB, client, installation, problem, served

ITEMS = b'{"id": "a", "text": "one"}\n{"id": "b", "text": "two"}\n'
NAME = hashlib.sha256(ITEMS).hexdigest() + ".jsonl"


def test_a_file_is_stored_under_its_content_and_judged(http: httpx2.Client, dicast: Dicast, tmp_path: Path) -> None:
    told = http.post("/uploads?ending=.jsonl", content=ITEMS)
    assert (told.status_code, told.json()) == (
        201, {"path": NAME, "bytes": len(ITEMS), "sha256": NAME.removesuffix(".jsonl")}
    )  # fmt: skip
    assert http.post("/uploads?ending=.jsonl", content=iter([ITEMS[:7], ITEMS[7:]])).json() == told.json()
    assert [path.name for path in (tmp_path / "uploads").iterdir()] == [NAME]
    assert http.post("/jobs", json={**JOB, "id": "j", "items": NAME}).json()["units"] == 2
    stored = json.loads(dicast.store.hget(dicast.keys.at("job", "j"), "spec"))
    assert stored["items"]["path"] == str(tmp_path / "uploads" / NAME)
    wrong = problem(
        http.post("/jobs", json={**JOB, "items": {"path": NAME, "text_field": "x"}}), 422, "unreadable-items"
    )
    assert str(tmp_path) not in wrong["detail"] and NAME in wrong["detail"]


def test_a_file_is_bounded_and_whole_or_not_there(tmp_path: Path, redis_url: str) -> None:
    bounds = {"DICAST_UPLOAD_MAX_BYTES": "3000000", "DICAST_UPLOAD_FOLDER_BYTES": "5000000"}
    dicast = installation(tmp_path, redis_url, DICAST_REQUIRE_AUTH="false", **bounds)
    with served(dicast) as address, client(address) as http:
        problem(http.post("/uploads?ending=.csv", content=b"x" * 3_000_001), 413, "body-too-large")
        assert http.post("/uploads?ending=.csv", content=b"x" * 3_000_000).status_code == 201
        problem(http.post("/uploads?ending=.csv", content=iter([b"y" * 1_500_000] * 2)), 507, "uploads-full")
        problem(http.post("/uploads?ending=.csv", content=b""), 422, "request-refused")
        for ending in ("", ".exe", ".jsonl/../x", "jsonl", ".jsonl%00"):
            problem(http.post(f"/uploads?ending={ending}", content=b"x"), 422, "request-refused")
        problem(http.post("/uploads", content=b"x"), 422, "request-refused")

        def breaks_off():
            yield b"z" * 1_200_000
            raise InterruptedError

        with pytest.raises(InterruptedError):
            http.post("/uploads?ending=.csv", content=breaks_off())
        assert http.get("/healthz").status_code == 200
    assert [path.stat().st_size for path in (tmp_path / "uploads").iterdir()] == [3_000_000]


@pytest.mark.parametrize(
    "path",
    [
        "../secret.jsonl", "..", ".", "", "/etc/passwd", "{root}/secret.jsonl", "{root}/uploads/../secret.jsonl",
        "link.jsonl", "{root}/uploads/link.jsonl", "folder/../../secret.jsonl", "to-root/secret.jsonl", "round.jsonl",
        "hard\0.jsonl", "~/secret.jsonl", "$HOME/secret.jsonl", "${{HOME}}", "file:///etc/passwd", "http://h/x.jsonl",
        "folder", "fifo.jsonl", ".hidden.tmp", "\\\\host\\share", "a" * 300, "a/" * 3000, "missing.jsonl", "gone.jsonl",
        "/proc/self/environ", "/dev/zero", "/dev/stdin",
    ],
)  # fmt: skip
def test_no_path_leads_out_of_the_folder(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path
    (root / "secret.jsonl").write_bytes(ITEMS)
    folder = root / "uploads"
    (folder / "folder").mkdir(parents=True)
    (folder / "link.jsonl").symlink_to(root / "secret.jsonl")
    (folder / "gone.jsonl").symlink_to(root / "nothing")
    (folder / "to-root").symlink_to(root)
    (folder / "round.jsonl").symlink_to(folder / "round.jsonl")
    (folder / ".hidden.tmp").write_bytes(ITEMS)
    os.mkfifo(folder / "fifo.jsonl")
    monkeypatch.setenv("HOME", str(root))
    with pytest.raises(FileRefused, match="there is no uploaded file"):
        Uploads(folder, 10, 10).find(path.format(root=root))


def test_what_is_inside_is_found_by_whatever_spelling(tmp_path: Path) -> None:
    (tmp_path / "real" / "sub").mkdir(parents=True)
    (tmp_path / "uploads").symlink_to(tmp_path / "real")
    file = tmp_path / "real" / "sub" / "a.jsonl"
    file.write_bytes(ITEMS)
    (tmp_path / "real" / "link.jsonl").symlink_to(file)
    uploads = Uploads(tmp_path / "uploads", 10, 10)
    for path in ("sub/a.jsonl", "sub/../sub/a.jsonl", "link.jsonl", str(file), str(tmp_path / "uploads/sub/a.jsonl")):
        assert uploads.find(path) == file


def test_a_job_over_http_names_no_other_file(http: httpx2.Client, tmp_path: Path) -> None:
    (tmp_path / "secret.jsonl").write_bytes(ITEMS)
    told = set()
    for path in (str(tmp_path / "secret.jsonl"), "../secret.jsonl", "../nothing.jsonl"):
        for items in (path, {"path": path}):
            told.add(problem(http.post("/jobs", json={**JOB, "items": items}), 403, "file-refused")["detail"][:40])
    assert told == {"items.path: there is no uploaded file '."[:40], "items.path: there is no uploaded file '/"[:40]}
