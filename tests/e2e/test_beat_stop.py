"""`celery beat` ends when it is asked to, wherever it is just then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from celery.beat import Scheduler

from tests.e2e.cluster import ROOT

pytestmark = pytest.mark.timeout(60)


class Finalized:
    """Asks its process to end while it is itself being finalized, where Python drops what a signal's handler raises."""

    def __del__(self):
        os.kill(os.getpid(), getattr(signal, os.environ["SIGNAL"]))


class SignalledScheduler(Scheduler):
    def tick(self, *args, **kwargs):
        interval = super().tick(*args, **kwargs)
        Finalized()
        return interval


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_it_ends_although_an_exception_is_dropped(redis_url, tmp_path, name):
    environ = {**os.environ, "REDIS_URL": redis_url, "DICAST_STATE_DIR": str(tmp_path), "SIGNAL": name}
    scheduler = f"{__name__}:{SignalledScheduler.__name__}"
    command = [sys.executable, "-m", "celery", "-A", "app", "beat", "--pidfile=", "--scheduler", scheduler]
    ended = subprocess.run(command, check=False, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert "Exception ignored" in ended.stderr
    assert ended.returncode == 0
