"""Contenders keep the protocol: real processes, and the simulated provider over HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab.bench import cases, contenders, pages
from lab.bench.contenders import ALL, OFFLINE, PEERS, Peer
from lab.bench.processes import ProcessOutcome, Script
from lab.bench.requests import calls, job

PEER_SCRIPTS = [contender for contender in ALL.values() if isinstance(contender, Peer)]


@pytest.mark.parametrize("peer", PEER_SCRIPTS, ids=lambda peer: peer.name)
def test_a_peer_has_a_script_and_pinned_requirements(peer: Peer) -> None:
    assert (PEERS / peer.script).exists()
    pins = (PEERS / f"{peer.venv}.txt").read_text().split()
    assert pins
    assert all("==" in pin for pin in pins)


def test_every_case_has_known_contenders_and_columns() -> None:
    assert {name for case in cases.CASES.values() for name in case.who} <= set(ALL)
    assert set(pages.COLUMNS) == set(cases.CASES)


@pytest.mark.parametrize("name", ["aiohttp-told", "openai-told"])
def test_a_case_measures_a_peer(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = ALL[name]
    assert isinstance(peer, Peer)
    (tmp_path / peer.venv).symlink_to(sys.prefix)  # these two need no more than the project has
    monkeypatch.setattr(contenders, "VENVS", tmp_path)
    measured = cases.steady(30)(peer, 1)
    figures = measured.figures
    assert (figures["lost"], figures["refused"], figures["calls"]) == (0, 0, 30)
    assert 0 < figures["capacity_%"] <= 100
    assert figures["peak_mb"] > 10
    assert figures["cpu_ms"] > 0
    assert "aiohttp" in measured.versions


def test_the_calls_are_those_of_the_job() -> None:
    made = calls(60)
    assert len(made) == 60
    assert len(job(60, "j")["items"]) == 2
    texts = [(call["text"], call["criterion"]) for call in made]
    assert len(set(texts)) == 2 * 10
    assert all(text in call["body"]["messages"][1]["content"] for call, (text, _) in zip(made, texts, strict=True))
    with pytest.raises(ValueError, match="multiple of 30"):
        job(31, "j")


SCRIPT = """
import sys
sys.path.insert(0, {peers!r})
import peer_task
peer_task.run(lambda task: lambda: print("noise") or len(task.calls) - (task.limit or 0))
"""


def test_a_scripts_words_are_kept_apart_from_a_librarys(tmp_path: Path) -> None:
    (tmp_path / "calls").write_text("".join(json.dumps(call) + "\n" for call in calls(30)))
    script = SCRIPT.format(peers=str(PEERS))
    command = [
        sys.executable,
        "-c",
        script,
        "--base-url",
        "http://x",
        "--calls",
        str(tmp_path / "calls"),
        "--limit",
        "7",
    ]
    started = Script(command, environ=dict(os.environ), folder=tmp_path, log=tmp_path / "log")
    try:
        started.ready(20)
        started.go()
        assert started.outcome(20) == ProcessOutcome(answered=23, versions={})
        assert started.usage().peak_mb > 1
        assert (tmp_path / "log").read_text() == "noise\n"
    finally:
        started.kill()


def test_a_script_that_dies_says_why(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no luck')"]
    started = Script(command, environ=dict(os.environ), folder=tmp_path, log=tmp_path / "log")
    with pytest.raises(RuntimeError, match="no luck"):
        started.ready(20)
    started.stop()


def test_a_peer_finds_no_host_but_this_one() -> None:
    look_up = "import socket; socket.getaddrinfo('localhost', 80); socket.getaddrinfo('example.org', 80)"
    environ = {"PYTHONPATH": OFFLINE["PYTHONPATH"]}
    done = subprocess.run([sys.executable, "-c", look_up], env=environ, capture_output=True, text=True, check=False)
    assert "benchmarks stay on this machine: 'example.org'" in done.stderr
