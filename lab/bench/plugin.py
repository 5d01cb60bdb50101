"""What the pytest plugin leaves of the capacity that a plain job gets. `python -m lab.bench.plugin --tests 200`

One worker, one pool of a fixed limit, a simulated provider: first a plain job of so many items, then as many tests that
each ask `judge` for one text. Compared are the units a second of the two jobs by their reports; told is also how long
the whole pytest process took, its start included.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from dicast.app.application import Dicast, create_app
from dicast.app.domain.report import Report
from dicast.app.operator.jobs import send
from dicast.app.operator.stack import LocalStack

ROOT = Path(__file__).parents[2]
LIMIT, LATENCY_S = 20, 0.2
JUDGES = {
    "agents": [{"name": "a", "pool": "sim"}, {"name": "b", "pool": "sim"}],
    "dimensions": [{"id": "clear", "instructions": "Is it clear?"}, {"id": "sound", "instructions": "Is it sound?"}],
}
TESTS = """
import pytest

@pytest.mark.parametrize("n", range({tests}))
def test_one(judge, n):
    judge(text=f"text {{n}}", at_least=1)
"""


def _plain(app: Dicast, tests: int) -> Report:
    items = [{"id": str(n), "text": f"plain {n}"} for n in range(tests)]
    job_id = app.submit({**JUDGES, "items": items})
    send(app, job_id)
    return _ended(app, job_id)


def _ended(app: Dicast, job_id: str) -> Report:
    while (report := app.ledger.status(job_id).report) is None:
        time.sleep(0.05)
    return Report.model_validate(report)


def _with_plugin(app: Dicast, folder: Path, environ: dict[str, str], tests: int) -> tuple[Report, float]:
    (folder / "test_it.py").write_text(TESTS.format(tests=tests))
    (folder / "judges.json").write_text(json.dumps(JUDGES))
    (folder / "pytest.ini").write_text("[pytest]\ndicast_job = judges.json\n")
    known = {status.id for status in app.ledger.jobs(100)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "dicast.app.testing.plugin", str(folder)]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    started = time.monotonic()
    subprocess.run(
        command, cwd=folder, check=True, stdout=subprocess.DEVNULL,
        env={**os.environ, **environ, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip
    took_s = time.monotonic() - started
    (job_id,) = {status.id for status in app.ledger.jobs(100)} - known
    return _ended(app, job_id), took_s


def measure(tests: int) -> dict[str, Any]:
    """Units a second of both, and the share that the plugin leaves."""
    provider = subprocess.Popen(
        [sys.executable, "-m", "lab.provider", "--port", "0", "--latency", str(LATENCY_S)],
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert provider.stdout is not None
    base_url = json.loads(provider.stdout.readline())["base_url"].rstrip("/").removesuffix("/v1")
    with tempfile.TemporaryDirectory(prefix="dicast-plugin-") as name:
        folder = Path(name)
        pool = f'[pools.sim]\nprovider = "simulated"\nbase_url = "{base_url}/v1"\nlimit = {LIMIT}\nadaptive = false\n'
        (folder / "pools.toml").write_text(pool)
        environ = {
            "DICAST_POOLS_FILE": str(folder / "pools.toml"), "DICAST_RESULTS_DIR": str(folder / "results"),
            "DICAST_STATE_DIR": str(folder / "state"), "MAX_CONCURRENT_LLM_CALLS": str(LIMIT),
            "DICAST_HTML_REPORT": "false", "REDIS_URL": "",
        }  # fmt: skip
        app = create_app({**os.environ, **environ})
        try:
            with LocalStack(app.settings):
                _plain(app, 5)  # what is loaded once is no part of it
                plain = _plain(app, tests)
                judged, took_s = _with_plugin(app, folder, environ, tests)
        finally:
            app.close()
            provider.terminate()
            provider.wait()
    rates = [report.scored / report.wall_s for report in (plain, judged)]
    return {
        "units": plain.units, "plain_per_s": round(rates[0], 1), "plugin_per_s": round(rates[1], 1),
        "share": round(rates[1] / rates[0], 3), "pytest_s": round(took_s, 1), "plain_s": round(plain.wall_s, 1),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description="What the pytest plugin leaves of a plain job's capacity.")
    parser.add_argument("--tests", type=int, default=200, help="tests, one text each (200)")
    parser.add_argument("--runs", type=int, default=1, help="how often (1)")
    given = parser.parse_args()
    for _ in range(given.runs):
        sys.stdout.write(json.dumps(measure(given.tests)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
