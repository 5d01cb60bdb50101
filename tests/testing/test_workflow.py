"""The example for GitHub Actions: its commands are run as they stand, but for a port that is free here."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from tests.e2e.cluster import DEADLINE_S, ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def test_the_workflow_judges_gates_and_reports(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (job,) = yaml.safe_load((ROOT / "examples" / "github_actions.yml").read_text())["jobs"].values()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    pools = tmp_path / "examples" / "gate.toml"
    pools.write_text(pools.read_text().replace("8099", port))
    environ = {
        **{name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ},
        **job["env"], "PYTHONPATH": str(ROOT), "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }  # fmt: skip
    steps: list[dict[str, Any]] = [step for step in job["steps"] if "run" in step and "name" in step]
    assert [step["name"] for step in steps] == ["judge and gate", "report"]
    for step in steps:
        with (tmp_path / "said").open("w+") as said:  # no pipe: the provider outlives its step, and would hold it
            shell = subprocess.Popen(
                ["bash", "-e", "-c", step["run"].replace("8099", port)], cwd=tmp_path, env=environ, stdout=said,
                stderr=said, start_new_session=True,
            )  # fmt: skip
            try:
                code = shell.wait(2 * DEADLINE_S)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(shell.pid, signal.SIGTERM)
            assert code == 0, (tmp_path / "said").read_text()
    assert (tmp_path / "summary.md").read_text().startswith("### Job gated ✅ passed its gate")
    (suite,) = ElementTree.parse(tmp_path / "gate.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "0", "0")
    assert "12 of 12 judgements" in (tmp_path / "report.html").read_text(encoding="utf-8")
