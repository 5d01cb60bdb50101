"""`celery beat` on a host whose clock is put back: its ticks go on, and so they do after a restart."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import redis

from dicast.app.pipeline.messages import BEAT_QUEUE
from lab.chaos.clocks import SteppedClock, available
from tests.e2e.cluster import ROOT, until

pytestmark = [pytest.mark.timeout(120), pytest.mark.skipif(not available(), reason="no C compiler is installed here")]

TICKS_S = 10.0
"""Four messages are two ticks of each entry, a second apart; a busy machine may need a while."""


@pytest.fixture
def start_beat(redis_url, tmp_path):
    running = []

    def start(clock):
        environ = {**os.environ, **clock.environ, "REDIS_URL": redis_url, "DICAST_STATE_DIR": str(tmp_path)}
        command = [sys.executable, "-m", "celery", "-A", "app", "beat", "--pidfile="]
        with (tmp_path / "beat.log").open("ab") as log:
            running.append(subprocess.Popen(command, env=environ, cwd=ROOT, stdout=log, stderr=log))
        return running[-1]

    yield start
    for beat in running:
        beat.kill()
        beat.wait()


@pytest.mark.parametrize("step_s", [-3600, -1, 1, 3600])
def test_ticks_go_on_when_the_clock_steps(start_beat, redis_url, tmp_path, step_s):
    clock = SteppedClock(tmp_path)
    beat = start_beat(clock)
    with redis.Redis.from_url(redis_url) as store:

        def ticks(more):
            before = store.llen(BEAT_QUEUE)
            until(lambda: store.llen(BEAT_QUEUE) >= before + more, "the beat ticks", TICKS_S)

        until(lambda: store.llen(BEAT_QUEUE), "the beat has begun")
        clock.step(step_s)
        ticks(4)
        beat.terminate()
        beat.wait()
        clock.step(-abs(step_s))
        start_beat(clock)
        until(lambda: b"beat: Starting" in (tmp_path / "beat.log").read_bytes(), "it starts again")
        ticks(4)
