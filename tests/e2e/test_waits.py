"""A job whose results cannot be written: its watchers are told, and end when they are told to."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from tests.e2e.cluster import ROOT, a_job, until
from tests.patience import Stopwatch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
DICAST = [sys.executable, "-m", "dicast.app.cli.main"]
ENDS_WITHIN_S = 30.0
"""Ten for the job, four for each part, and a busy machine."""


@pytest.mark.parametrize("local", [True, False])
def test_it_is_told_and_ends_when_it_is_told_to(cluster, local):
    """A file stands where the results' folder should be: as lasting a refusal as a full disk's."""
    cluster = cluster()
    cluster.results.write_text("in the way")
    if not local:
        cluster.worker()
    (cluster.folder / "job.json").write_text(json.dumps({**a_job(), "id": "j"}))
    process = subprocess.Popen(
        [*DICAST, "run", "job.json", "--on-interrupt", "cancel", *(["--local"] if local else [])],
        cwd=cluster.folder, env={**cluster.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    said = ""
    while "its results cannot be written" not in said:
        line = process.stderr.readline()
        assert line, said
        said += line
    assert "Not a directory" in said or "File exists" in said
    assert "its results cannot be written" in until(lambda: cluster.app.ledger.status("j").waits_for, "the word")
    watch = Stopwatch()
    process.send_signal(signal.SIGTERM)
    out, rest = process.communicate(timeout=60)
    assert watch.s < ENDS_WITHIN_S, rest
    assert (process.returncode, out) == (3, ""), rest
