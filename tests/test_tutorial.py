"""The tutorial, word by word: its commands in one shell in an empty folder, its files, and what it says is shown.

A simulated provider stands in for the local model, and a client of the HTTP interface for the person at the page
(`tests/page/` drives the page itself).
"""

from __future__ import annotations

import itertools
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
import yaml

from dicast.app.domain.job import EvaluationJob
from tests.e2e.cluster import ROOT, Simulated, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
BLOCKS = [(kind, text) for kind, text in re.findall(r"^```(\w+)\n(.*?)^```", TUTORIAL, re.DOTALL | re.MULTILINE)]
SAID_S = 120
POOLS = '[pools.local]\nprovider = "simulated"\nbase_url = "{url}/v1"\n'


def files() -> dict[str, str]:
    """What is to be written into which file: the last name in backquotes before a block."""
    found = {}
    for before, after in itertools.pairwise(re.split(r"^```", TUTORIAL, flags=re.MULTILINE)):
        if after.startswith(("csv\n", "yaml\n")):
            found[re.findall(r"`([\w./]+\.\w+)`", before)[-1]] = after.partition("\n")[2]
    return found


class Shell:
    """One bash that is given block after block, as a person would, and whose output is read up to a mark."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            ["bash", "-e"], cwd=folder, env=environ, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def give(self, block: str) -> str:
        """What it said. A command that fails ends the shell, and the test."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{block}\necho END OF BLOCK\n")
        self.process.stdin.flush()
        watch = threading.Timer(SAID_S, self.process.kill)
        watch.start()
        lines: list[str] = []
        for line in self.process.stdout:
            if line == "END OF BLOCK\n":
                break
            lines.append(line)
        watch.cancel()
        assert self.process.poll() is None or not lines or line == "END OF BLOCK\n", "".join(lines)
        assert line == "END OF BLOCK\n", f"{block}\n{''.join(lines)}"
        return "".join(lines)

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        if self.process.poll() is None:
            self.process.stdin.close()
            self.process.wait(timeout=20)
        self.process.stdout.close()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    provider = Simulated("--latency", "0.02")
    (tmp_path / "pools.toml").write_text(POOLS.format(url=provider.base_url))
    (tmp_path / "empty").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    environ = {
        **{name: os.environ[name] for name in ("HOME", "LANG", "PATH") if name in os.environ}, "PYTHONPATH": str(ROOT),
        "DICAST_POOLS_FILE": str(tmp_path / "pools.toml"), "DICAST_SERVER_PORT": port,
        # Whoever runs the tests need not own the checkout.
        "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*",
    }  # fmt: skip
    shell = Shell(tmp_path / "empty", environ)
    try:
        yield shell
    finally:
        shell.close()
        if (tmp_path / "empty" / "shop" / ".dicast").exists():  # the tutorial has failed before it ended the store
            stop = [str(Path(sys.executable).with_name("dicast")), "stop"]
            subprocess.run(stop, cwd=tmp_path / "empty" / "shop", env=environ, check=False, capture_output=True)
        provider.stop()


def test_what_is_to_be_written_is_a_job_its_items_and_a_workflow() -> None:
    assert list(files()) == ["answers.csv", "job.yaml", ".github/workflows/judge.yml"]
    job = yaml.safe_load(files()["job.yaml"])
    assert len(EvaluationJob.model_validate({**job, "items": {"path": "answers.csv"}}).agents) == 2


def test_the_tutorial_is_true_word_by_word(shell: Shell, tmp_path: Path) -> None:
    told, shown = "", 0
    for kind, text in BLOCKS:
        if kind == "sh" and "dicast serve" in text:
            _rate_ten(shell, text, tmp_path)
        elif kind == "sh":
            told = ""
            for part in _parts(text):
                told += shell.give(part)
            if "git clone" in text:
                assert "set-up" in told
        elif kind == "text":
            for line in text.splitlines():
                told = after(line, told)
                shown += 1
    assert shown > 10
    folder = tmp_path / "empty" / "shop"
    assert (folder / "results" / "answers" / "report.html").is_file()
    assert not (folder / ".dicast" / "valkey.sock").exists()


def _parts(block: str) -> Iterator[str]:
    """A block's commands; the clone gets this environment instead of one that takes a minute to make, and the folder
    `shop` gets its files where a person would write them."""
    clone, made, rest = block.replace("REPOSITORY", str(ROOT)).partition(" dicast\n")
    if not made or "git clone" not in clone:
        yield block
        if block.endswith("cd shop\n"):
            for name, text in files().items():
                path = Path(name)
                yield f"mkdir -p {path.parent}; cat >{path} <<'END OF FILE'\n{text}END OF FILE\n"
        return
    yield clone + made
    yield f"mkdir dicast/.venv; ln -s {Path(sys.executable).parent} dicast/.venv/bin; touch dicast/.venv/.complete\n"
    yield rest


def after(line: str, told: str, *, same_numbers: bool = False) -> str:
    """Return what was printed after this line; its numbers may be others, unless they are to be the same."""
    words = line.strip() if same_numbers else re.sub(r"\d[\d.,]*", "\0", line.strip())
    pattern = r"\s+".join(re.escape(word).replace("\0", r"[\d.,]+") for word in words.split())
    found = re.search(pattern, told)
    assert found, f"{line!r} is not shown by\n{told}"
    return told[found.end() :]


def _rate_ten(shell: Shell, command: str, tmp_path: Path) -> None:
    """Ten ratings by a person who comes with the browser to the address that the tutorial names."""
    (page,) = re.findall(r"<(http://127\.0\.0\.1:8700/)#/rate/answers>", TUTORIAL)
    shell.give(f": >served.log\n{command.strip()} >>served.log 2>&1 &\nserver=$!")
    log = tmp_path / "empty" / "shop" / "served.log"
    (address,) = until(lambda: re.findall(r"http://127\.0\.0\.1:\d+", log.read_text())[:1], "it serves")
    with httpx2.Client(base_url=address, timeout=30) as http:
        until(lambda: _answers(http), "it answers")
        assert "<title>Dicast</title>" in http.get(page.removeprefix("http://127.0.0.1:8700")).text
        assert http.post("/jobs/answers/rating", json={"size": 10}).status_code == 201
        sampled = http.get("/jobs/answers/rating?rater=me").json()
        assert len(sampled["items"]) == 10
        for n, item in enumerate(sampled["items"]):
            given = {"rater": "me", "item_id": item, "dimension": "clear", "score": 1 + n % 5}
            assert http.post("/jobs/answers/rating/scores", json=given).status_code == 200
        agreed = http.post("/jobs/answers/rating/finish", json={"rater": "me"}).json()
    assert (agreed["ratings"], len(agreed["compared"]), agreed["reason"]) == (10, 10, None)
    shell.give("kill $server; wait $server || true")


def _answers(http: httpx2.Client) -> bool:
    try:
        return http.get("/").status_code == 200
    except httpx2.TransportError:
        return False
