"""Makes the pictures of README.md and docs/: `python -m lab.pictures`.

It needs Chromium. The demo is judged in a folder of its own, and `dicast serve` shows it. The other reports of the
gallery are those of `lab.gallery`.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from lab.gallery import write as write_gallery

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
WIDTH, HEIGHT = 1100, 760
COLOURS = 64
"""Of a picture: fewer make it smaller, and these are hard to tell from all."""


def main() -> int:
    """Write all pictures."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, browser() as chromium:
        dicast(Path(folder), "demo").wait()
        demo = Path(folder) / "dicast-demo"
        take(chromium, (demo / "results" / "demo" / "report.html").as_uri(), "report", "light")
        with serving(demo) as address:
            take(chromium, f"{address}#/jobs/demo", "page", "dark", wait=".verdict")
        for report in write_gallery(Path(folder) / "gallery"):
            take(chromium, report.as_uri(), f"report-{report.parent.name}", "light")
    return 0


def dicast(folder: Path, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Start one of Dicast's commands in a folder."""
    command = [sys.executable, "-m", "dicast", *arguments]
    environ = {**os.environ, "DICAST_REQUIRE_AUTH": "false", "PYTHONPATH": str(Path(__file__).parents[1])}
    return subprocess.Popen(command, cwd=folder, env=environ, text=True, **options)


@contextmanager
def browser() -> Iterator[Any]:
    """Run Chromium, without a window."""
    with sync_playwright() as made:
        path = shutil.which("chromium") or shutil.which("chromium-browser")
        chromium = made.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve a folder's installation, and yield the address that `dicast serve` prints."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = dicast(folder, "serve", "--port", str(port), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        assert server.stdout is not None
        addresses = (re.search(r"http://[\w.:]+", line) for line in server.stdout)
        yield next(f"{found.group()}/" for found in addresses if found)
    finally:
        server.terminate()
        server.wait(30)


def take(chromium: Any, address: str, name: str, scheme: str, wait: str = "main") -> None:
    """Take a picture of the first screenful, in few colours."""
    page = chromium.new_page(color_scheme=scheme, viewport={"width": WIDTH, "height": HEIGHT})
    page.goto(address)
    page.wait_for_selector(wait)
    page.wait_for_timeout(500)
    path = FOLDER / f"{name}.png"
    page.screenshot(path=path)
    page.close()
    reduced(path)
    print(f"{path.stat().st_size / 1024:5.0f} KB  {path}")


def reduced(path: Path) -> None:
    """Write a picture again with `COLOURS` colours."""
    from PIL import Image  # noqa: PLC0415  (comes with matplotlib)

    with Image.open(path) as picture:
        picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    sys.exit(main())
