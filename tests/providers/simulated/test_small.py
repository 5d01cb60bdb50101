"""The simulated provider that comes with the wheel: it answers, and has no limits."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from typing import Any

import pytest

from dicast.app.providers.simulated import main

QUESTION = {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "NONCE: 0123456789abcdef"}]}


def ask(url: str, body: Any, **headers: str) -> tuple[int, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read() or b"null")


def test_it_answers_both_apis_as_a_process_refuses_other_keys_and_stops_when_told():
    command = [sys.executable, "-m", "dicast.app.providers.simulated", "--api-key", "k", "--answer-chars", "30"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["base_url"]
        try:
            status, reply = ask(f"{url}/v1/chat/completions", QUESTION, Authorization="Bearer k")
            verdict = json.loads(reply["choices"][0]["message"]["content"])
            assert (status, verdict["nonce"], len(verdict["argument"])) == (200, "0123456789abcdef", 30)
            status, reply = ask(f"{url}/v1/messages", QUESTION, **{"x-api-key": "k"})
            assert (status, json.loads(reply["content"][0]["text"]).keys()) == (200, verdict.keys())
            status, reply = ask(f"{url}/v1/messages", QUESTION, **{"x-api-key": "other"})
            assert (status, reply["error"]["type"]) == (401, "authentication_error")
            status, reply = ask(f"{url}/v1/chat/completions", {"model": "m"}, Authorization="Bearer k")
            assert (status, reply["error"]["type"]) == (400, "invalid_request_error")
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


@pytest.mark.parametrize("line", ["--cap 3", "--latency -1", "--latency nan", "--answer-chars x"])
def test_mistakes_end_it_at_once(line, capsys):
    with pytest.raises(SystemExit) as caught:
        main(line.split())
    assert caught.value.code == 2
    assert "error:" in capsys.readouterr().err
