"""A server that is killed while somebody rates: what was acknowledged is there, and the page goes on."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dicast.app.reports.blind import BlindRatings
from dicast.app.reports.folders import job_folder
from tests.e2e.cluster import ROOT, until
from tests.page import world
from tests.page.conftest import Watched
from tests.server.serving import POOLS, client, installation

if TYPE_CHECKING:
    from playwright.sync_api import Response


def started(folder: Path, redis_url: str, port: int) -> subprocess.Popen[bytes]:
    (folder / "pools.toml").write_text(POOLS.format(url="http://127.0.0.1:9"))
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG", "VIRTUAL_ENV")}
    given = {
        "REDIS_URL": redis_url, "DICAST_POOLS_FILE": str(folder / "pools.toml"), "DICAST_REQUIRE_AUTH": "false",
        "DICAST_RESULTS_DIR": str(folder / "results"), "DICAST_STATE_DIR": str(folder / "state"),
        "DICAST_UPLOAD_DIR": str(folder / "uploads"),
    }  # fmt: skip
    command = [sys.executable, "-m", "dicast", "serve", "--port", str(port)]
    with (folder / "serve.log").open("ab") as log:
        process = subprocess.Popen(command, cwd=ROOT, env={**kept, **given}, stdout=log, stderr=log)
    until(lambda: _alive(port), "the server answers")
    return process


def _alive(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=1) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def test_a_killed_server_loses_no_rating(tmp_path: Path, redis_url: str, open_page: Callable[..., Watched]) -> None:
    """What the page has counted, and what was answered at all, is on disk. A rating whose answer was lost may be there
    or not: the page asks for it again, and it counts once."""
    dicast = installation(tmp_path, redis_url, DICAST_REQUIRE_AUTH="false", DICAST_TOKEN_SECRET="")
    world.finished(dicast, "essays", 12)
    blind = BlindRatings(job_folder(dicast.settings.results_dir, "essays"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = started(tmp_path, redis_url, port)
    try:
        address = f"http://127.0.0.1:{port}"
        with client(address) as http:
            assert http.post("/jobs/essays/rating", json={"size": 12}).status_code == 201
        seen = open_page(address)
        seen.expected = ["ERR_"]
        answered: list[tuple[str, str]] = []
        seen.page.on("response", lambda reply: answered.append(_rated(reply)) if _is_rating(reply) else None)
        seen.go("#/rate/essays?rater=ada")
        for _ in range(2):
            for key in ("4", "2"):
                seen.page.keyboard.press(key)
            seen.page.wait_for_selector("#entry")
            seen.page.keyboard.type("70")
            seen.page.keyboard.press("Enter")
            seen.page.wait_for_selector("#entry", state="detached")
        seen.page.keyboard.press("3")  # on its way when the server dies, answered, or on disk with its answer lost
        process.send_signal(signal.SIGKILL)
        process.wait()
        with seen.page.expect_event("requestfailed", lambda request: '"score":5' in (request.post_data or "")):
            seen.page.keyboard.press("5")
        seen.page.wait_for_selector("#notice:not([hidden])")
        assert "does not answer" in seen.page.inner_text("#notice")
        told, kept = _told(seen), blind.ratings()
        assert 6 <= told <= len(kept) <= 7
        codes = blind.codes(blind.queue(), "ada")
        assert {(codes[code].id, dimension) for code, dimension in answered} <= {key[:2] for key in kept}
        process = started(tmp_path, redis_url, port)
        seen.page.keyboard.press("1")  # the question whose answer was lost, or the next one
        until(lambda: _told(seen) == told + 1, "the rating goes on")
        kept = blind.ratings()
        assert len(kept) == told + 1 and 1 in kept.values()
        seen.page.reload()
        seen.page.wait_for_selector(f"text={told + 1} of 36")
    finally:
        process.kill()
        process.wait()
        dicast.close()


def _told(seen: Watched) -> int:
    return int(seen.page.inner_text(".part").split()[0])


def _is_rating(reply: Response) -> bool:
    return reply.ok and "rating/scores" in reply.url


def _rated(reply: Response) -> tuple[str, str]:
    given = reply.request.post_data_json
    return given["item_id"], given["dimension"]
