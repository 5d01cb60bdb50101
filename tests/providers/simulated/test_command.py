from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request

import pytest

from lab.provider.__main__ import config_of, main, parser
from lab.provider.account import Behaviour, Step


def test_the_command_line_says_it_all():
    line = (
        "--seed 7 --cap 5 --latency 0.5 --sigma 0.5 --rpm 600 --no-headers --fault cut=0.1 --fault hang "
        "--step 300:10 --step 30s:cap=2,rpm=none --model slow:latency=5 --api-key k --retry-after-value soon"
    )
    config = config_of(parser().parse_args(line.split()))
    assert config.seed == 7
    assert config.api_key == "k"
    assert config.behaviour == Behaviour(
        cap=5,
        latency=0.5,
        sigma=0.5,
        rpm=600,
        headers=False,
        retry_after_value="soon",
        faults={"cut": 0.1, "hang": 1.0},
    )
    assert config.steps == (Step(300, None, {"cap": 10}), Step(None, 30.0, {"cap": 2, "rpm": None}))
    assert config.models["slow"].latency == 5
    assert config.models["slow"].cap == 5


@pytest.mark.parametrize(
    "line",
    [
        "--cap x",
        "--cap -1",
        "--fault nonsense=1",
        "--fault cut=2",
        "--step 5",
        "--step 1.5:3",
        "--model slow",
        "--rpm 0",
    ],
)
def test_mistakes_end_it_at_once(line, capsys):
    with pytest.raises(SystemExit) as caught:
        main(line.split())
    assert caught.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_it_runs_as_a_process_says_where_and_stops_when_told():
    command = [sys.executable, "-m", "lab.provider", "--cap", "3"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        try:
            with urllib.request.urlopen(ready["base_url"] + "/stats", timeout=10) as response:
                assert json.load(response)["calls"] == 0
            assert ready["pid"] == process.pid
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
