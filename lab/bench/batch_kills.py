"""What a program that is killed leaves of its batch, by the provider's own invoice. `python -m lab.bench.batch_kills`

    python -m lab.bench.batch_kills --with inspect,curator --rounds 2

A proxy holds a request of the batch at one step; the program is killed there with SIGKILL and started anew, told to go
on with what it left. Counted are the requests that the provider has billed, those of them whose question had been
billed before, and the batches that were created. What Dicast does is measured by
`BATCH_KILLS=50 pytest tests/e2e/test_batches.py -k killed_at_any`, at the same steps.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.bench.contenders import OFFLINE, PEERS, READY_DEADLINE_S, VENVS, environ_of
from lab.bench.processes import Script
from lab.bench.requests import write_calls
from tests.e2e.cluster import Simulated
from tests.e2e.holding import STEPS, HoldingProxy

UNITS = 150
HELD_S, ENDED_S = 120.0, 300.0
SCRIPTS = {"inspect": "inspect_eval.py", "curator": "curator_llm.py"}


@dataclass(frozen=True)
class Left:
    """What came of one kill: answers that the second run had, requests billed, those billed before, batches made."""

    answered: int
    billed: int
    repeated: int
    batches: int


def killed(peer: str, step: str, folder: Path) -> Left:
    """Kill a peer at one step of its batch, and start it again."""
    provider = Simulated("--price", "2/8", "--batch-time", "2", "--log", str(folder / "provider.jsonl"))
    proxy = HoldingProxy(provider.base_url, step)
    try:
        calls = folder / "calls.jsonl"
        write_calls(calls, UNITS)
        command = [str(VENVS / peer / "bin" / "python"), str(PEERS / SCRIPTS[peer]), "--base-url", f"{proxy.url}/v1"]
        command += ["--calls", str(calls), "--folder", str(folder), "--batch"]
        environ = environ_of(folder, **OFFLINE, OPENAI_BASE_URL=f"{proxy.url}/v1")
        first = Script(command, environ=environ, folder=folder, log=folder / "log")
        first.ready(READY_DEADLINE_S)
        first.go()
        if not proxy.held.wait(HELD_S):
            raise RuntimeError(
                f"{peer} made no request that could be held {step}: {(folder / 'log').read_text()[-3000:]}"
            )
        first.kill()
        second = Script([*command, "--resume"], environ=environ, folder=folder, log=folder / "log")
        second.ready(READY_DEADLINE_S)
        second.go()
        answered = second.outcome(ENDED_S).answered
        second.kill()
        bill: Mapping[str, Any] = provider.invoice()
        billed = sum(road["requests"] for road in bill["roads"].values())
        return Left(answered, billed, bill["repeated"], sum(provider.stats()["batches"]["states"].values()))
    finally:
        proxy.stop()
        provider.stop()


def main() -> None:
    parse = argparse.ArgumentParser(prog="python -m lab.bench.batch_kills", description=(__doc__ or "").splitlines()[0])
    parse.add_argument("--with", dest="peers", default=",".join(SCRIPTS), help="of inspect,curator")
    parse.add_argument("--rounds", type=int, default=1, help="kills at each step")
    wish = parse.parse_args()
    peers = wish.peers.split(",")
    for peer in peers:
        if peer not in SCRIPTS:
            parse.error(f"--with: {peer!r} is none of {', '.join(SCRIPTS)}")
        if not (VENVS / peer / ".complete").exists():
            parse.error(f"--with: {peer} is not installed; `make bench-peers` does it")
    print("| peer | killed | answered of 150 | billed | of them billed before | batches |\n|---|---|--:|--:|--:|--:|")
    for peer in peers:
        for step in [step for step in STEPS for _ in range(wish.rounds)]:
            with tempfile.TemporaryDirectory(prefix="dicast-batch-kills-") as folder:
                left = killed(peer, step, Path(folder))
            print(
                f"| {peer} | {step} | {left.answered} | {left.billed} | {left.repeated} | {left.batches} |", flush=True
            )


if __name__ == "__main__":
    main()
