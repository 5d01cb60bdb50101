"""Files over HTTP: stored once and whole, and no job reaches another file."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from dicast.app.application import Dicast
from dicast.app.server.errors import FileNotAllowed, FolderFull
from dicast.app.server.parts import Uploads
from tests.server.serving import JOB, client, installation, problem, served

ITEMS = b'{"id": "a", "text": "one"}\n{"id": "b", "text": "two"}\n'
NAME = hashlib.sha256(ITEMS).hexdigest() + ".jsonl"


def files_of(folder: Path) -> dict[str, int]:
    """Names and sizes, but for the lock."""
    return {path.name: path.stat().st_size for path in folder.iterdir() if path.name != ".lock"}


def test_a_file_is_stored_under_its_content_and_judged(http: httpx2.Client, dicast: Dicast) -> None:
    folder = Path(dicast.settings.upload_dir)
    told = http.post("/uploads?ending=.jsonl", content=ITEMS)
    assert (told.status_code, told.json()) == (
        201, {"path": NAME, "bytes": len(ITEMS), "sha256": NAME.removesuffix(".jsonl")}
    )  # fmt: skip
    assert http.post("/uploads?ending=.jsonl", content=iter([ITEMS[:7], ITEMS[7:]])).json() == told.json()
    assert files_of(folder) == {NAME: len(ITEMS)}
    assert http.post("/jobs", json={**JOB, "id": "j", "items": NAME}).json()["units"] == 2
    stored = json.loads(dicast.store.hget(dicast.keys.at("job", "j"), "spec"))
    assert stored["items"]["path"] == str(folder / NAME)
    wrong = problem(
        http.post("/jobs", json={**JOB, "items": {"path": NAME, "text_field": "x"}}), 422, "unreadable-items"
    )
    assert str(folder) not in wrong["detail"] and NAME in wrong["detail"]


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
    assert list(files_of(tmp_path / "uploads").values()) == [3_000_000]


@pytest.mark.parametrize("said", [True, False], ids=["with its length", "without"])
def test_uploads_at_once_never_pass_what_the_folder_may_hold(tmp_path: Path, redis_url: str, said: bool) -> None:
    """At two servers that share it: each of eight files has room alone, and two of them together."""
    bounds = {"DICAST_UPLOAD_FOLDER_BYTES": "7000000", "DICAST_REQUIRE_AUTH": "false"}
    one, two = (installation(tmp_path, redis_url, **bounds) for _ in range(2))
    together, most, stopped = threading.Barrier(8), [0], threading.Event()

    def look() -> None:
        while not stopped.wait(0.001):
            with contextlib.suppress(FileNotFoundError), (tmp_path / "uploads" / ".lock").open("rb+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # no file grows or moves while they are added up
                most.append(sum(files_of(tmp_path / "uploads").values()))

    def body(n: int) -> Iterator[bytes]:
        yield b"%d" % n
        together.wait(20)  # all have begun
        for _ in range(12):
            yield b"x" * 250_000

    length = {"Content-Length": "3000001"} if said else {}
    with served(one) as first, served(two) as second, ThreadPoolExecutor(9) as pool:
        pool.submit(look)
        sent = [
            pool.submit(
                httpx2.post,
                f"{(first, second)[n % 2]}/uploads?ending=.csv",
                content=body(n),
                headers=length,
                timeout=30,
            )
            for n in range(8)
        ]
        statuses = sorted(reply.result().status_code for reply in sent)
        stopped.set()
    assert max(most) <= 7_000_000
    assert set(statuses) <= {201, 507} and statuses.count(201) <= 2
    assert statuses.count(201) == 2 or not said, "whose length is known has all its room from the beginning"
    assert sum(files_of(tmp_path / "uploads").values()) == 3_000_001 * statuses.count(201), "nothing is left of others"


def test_what_a_killed_server_had_reserved_is_free_again(tmp_path: Path) -> None:
    folder = tmp_path / "uploads"
    program = (
        "import asyncio, sys\nfrom pathlib import Path\nfrom dicast.app.server.parts import Uploads\n"
        "async def body():\n    yield b'x' * 3_000_000\n    print('written', flush=True)\n    await asyncio.sleep(60)\n"
        "asyncio.run(Uploads(Path(sys.argv[1]), 9_000_000, 9_000_000).take(body(), '.csv'))"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None and writer.stdout.readline() == b"written\n"
        (held,) = files_of(folder).values()
        assert held >= 3_000_000
        with pytest.raises(FolderFull):
            asyncio.run(Uploads(folder, 9_000_000, 9_000_000).take(whole(b"y" * 8_000_000), ".csv"))
        writer.kill()
    kept = asyncio.run(Uploads(folder, 9_000_000, 9_000_000).take(whole(b"y" * 9_000_000), ".csv"))
    assert files_of(folder) == {kept.path: 9_000_000}


async def whole(content: bytes) -> AsyncIterator[bytes]:
    yield content


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
    with pytest.raises(FileNotAllowed, match="there is no uploaded file"):
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
