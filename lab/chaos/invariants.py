"""The invariants, checked after healing from the provider's log, the ledger, the files and the logs.

A violation begins with its invariant's name, as in docs/chaos.md: one outcome, one answer, panel, one completion,
nothing lost, the limit, at rest, spending, in time, bounded, no secrets, own answers, counts, the living. (That
no paid answer is thrown away follows from `spending` where no process dies: an answer that is lost has to be paid for
again.)
"""

from __future__ import annotations

import json
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import redis

from dicast.app.ledger.records import JobState
from lab.chaos import shapes
from lab.chaos.books import compare
from lab.chaos.canaries import SECRETS, TEXT, found_in
from lab.chaos.installation import LIMIT, Installation
from lab.chaos.own_answers import foreign
from lab.chaos.runs import OPEN_BEFORE_S, Run
from lab.replay import replay
from tests.e2e.cluster import until

QUIET_S = 20.0
ITEMS = ("items.jsonl", "arranged.jsonl")
"""Where a job keeps its own items: those that came with it, and those that were arranged."""
MEMORY_MB = 400.0


def judge(run: Run, *, ended: bool) -> list[str]:
    """All violations, each begins with its invariant's name."""
    found: list[str] = []
    if ended:
        found += _outcomes(run)
        found += _answers(run)
        found += _quiet(run)
    found += _provider(run)
    found += _burials(run)
    found += _secrets(run)
    if ended:
        found += _books(run)
        found += _charges(run)
    memory_mb = run.place.memory_mb() if run.place.workers else 0.0
    if memory_mb > MEMORY_MB:
        found.append(f"bounded: a worker holds {memory_mb:.0f} MB")
    return found


# ------------------------------------------- one outcome, one completion, nothing lost, no stale write
def _outcomes(run: Run) -> list[str]:
    cluster, job_id = run.place.cluster, run.job_id
    status = run.status()
    if status is None or status.report is None:
        return [f"nothing lost: job {job_id} is not in the ledger"]
    found: list[str] = []
    opinions, errors = cluster.opinions(job_id), cluster.errors(job_id)
    places = Counter(map(_place, opinions))
    unscored = Counter(_place(o) for o in opinions if o["score"] is None and not o.get("not_needed"))
    if twice := [p for p, n in places.items() if n > 1]:
        found.append(f"one outcome: {len(twice)} units have two opinions: {twice[:3]}")
    if Counter(map(_place, errors)) != unscored:
        found.append(f"one outcome: {len(errors)} errors for {len(unscored)} opinions without a score")
    cancelled = status.state is JobState.CANCELLED
    if cancelled and not any(f.cancels for f in run.faults):
        found.append("one outcome: the job was cancelled by nobody")
    found += [] if cancelled else shapes.outcomes(run.job, status.report, opinions)
    wrong = [e for e in errors if e["kind"] != "rejected" or not any(f.rejects for f in run.faults)]
    if wrong and not cancelled and not any(f.bad_answers for f in run.faults):
        why = Counter(e["message"] for e in wrong)
        found.append(f"one outcome: {len(unscored)} units failed: {why.most_common(2)}")
    report: dict[str, Any] = status.report
    own = [o for o in opinions if o.get("probe") is None]
    spared = sum(bool(o.get("not_needed")) for o in own)
    scored = sum(o["score"] is not None for o in own)
    files = scored, len(own) - scored - spared, spared, len(opinions) - len(own)
    if (told := tuple(report[name] for name in ("scored", "failed", "spared", "probed"))) != files:
        found.append(f"one outcome: the report tells of {told} scored, failed, spared and probed, the files of {files}")
    completions = sum(
        b'"job_completed"' in line and job_id.encode() in line
        for log in run.place.logs()
        for line in _fresh(run, log).splitlines()
    )
    if completions > 1:
        found.append(f"one completion: {completions} completions")
    try:
        until(lambda: _result(run) == json.loads(json.dumps(report)), "the ledger's report is told", 15)
    except TimeoutError as error:
        found.append(f"one completion: {error}")
    return found


def _result(run: Run) -> Any:
    """What whoever waits for the job is given now; an earlier job of its id may have left that it is lost."""
    told = run.place.cluster.app.backend.get(f"celery-task-meta-{run.job_id}")
    return json.loads(told)["result"] if told else None


def _place(entry: dict[str, Any]) -> tuple[Any, ...]:
    return entry["judge"], entry["criterion_id"], entry["item_id"], entry["replicate"], entry.get("probe")


# ----------------------------------------------------------------------------------------- own answers
def _answers(run: Run) -> list[str]:
    """Batches are left out: what was asked in one call follows from what each call found."""
    try:
        opinions = run.place.cluster.opinions(run.job_id)
    except FileNotFoundError:  # of a job that is not there
        return []
    own = [opinion for opinion in opinions if opinion.get("probe") is None]  # a variant's text is not the item's
    asked_alike = [opinion for opinion in own if opinion["judge"] != shapes.chief_of(run.job)]
    units = [] if run.job.get("batching") else foreign(run.job, asked_alike)
    found = [f"own answers: {len(units)} units have the answer to another question: {units[:3]}"] if units else []
    return found + ([] if run.job.get("batching") else shapes.verdicts(run.job, own))


# --------------------------------------------------------------------------------------------- at rest
def _quiet(run: Run) -> list[str]:
    """No lease, no count, no page, no message, once everybody is at rest."""
    store, app = run.place.store.client, run.place.cluster.app
    left: dict[str, Any] = {}

    def rest() -> bool:
        left.clear()
        try:
            left.update(
                **_leases(run), pages=store.keys(app.keys.at("job") + ":*:page:*"),
                unfinished=store.zrange(app.keys.at("unfinished"), 0, -1),
                waiting=sum(store.llen(q) for q in ("provider.sim", "provider.claude", "dicast.control")),
                unacked=[k for k in store.keys(app.keys.at("unacked") + ":*") if store.type(k) == "hash"],
            )  # fmt: skip
        except redis.RedisError as error:
            left["store"] = error
        return not any(left.values())

    try:
        until(rest, "rest", QUIET_S)
    except TimeoutError:
        return [f"at rest: after {QUIET_S:.0f} s: { ({k: v for k, v in left.items() if v}) }"]
    return []


def _leases(run: Run) -> dict[str, Any]:
    """What is held. Leases that have run out are taken away by the next who asks, and nobody asks at rest: they count
    where the fault lets leases run out."""
    store, keys = run.place.store.client, run.place.cluster.app.keys
    now = int(store.hget(keys.clock, "now") or 0)
    if any(f.loose_log for f in run.faults) and not store.zcount(keys.leases, now, "+inf"):
        return {}
    return {
        "leases": store.zcard(keys.leases), "holders": store.hlen(keys.holders), "open": store.hgetall(keys.open),
    }  # fmt: skip


# --------------------------------------------------------------------------------- the limit, spending
def provider_log(place: Installation) -> list[dict[str, Any]]:
    with urlopen(f"{place.provider.base_url}/log", timeout=10) as reply:
        entries: list[dict[str, Any]] = json.load(reply)
        return entries


def _provider(run: Run) -> list[str]:
    found = []
    before = time.monotonic()
    stats = run.place.provider.stats()
    started = (before + time.monotonic()) / 2 - stats["uptime_s"]
    if stats["max_open"] > LIMIT:
        found.append(f"the limit: {stats['max_open']} calls were open at the provider, {LIMIT} allowed")
    entries = provider_log(run.place)
    excused = {e["number"] for e in entries if e["status"] != 200 or e["reason"] is not None}
    excused |= _struck(run, entries, started)
    allowed = run.fewest_calls + len(excused)
    if stats["calls"] > allowed and not any(f.forgets for f in run.faults):  # a forgotten job is another job
        found.append(
            f"spending: {stats['calls']} calls for {run.fewest_calls}, {len(excused)} of them failed or were open"
        )
    return found


def _struck(run: Run, entries: list[dict[str, Any]], started: float) -> set[int]:
    """Calls that were open, or had just ended, when something was struck that may have had them in hand."""
    return {
        e["number"] for e in entries for at in (strike - started for strike in [*run.strikes, *_takeovers(run)])
        if e["arrival"] <= at + 0.05 and (e["end"] is None or e["end"] >= at - OPEN_BEFORE_S)
    }  # fmt: skip


def _takeovers(run: Run) -> list[float]:
    """When a living node was so silent that others took its work, on the monotonic clock."""
    offset = time.time() - time.monotonic()
    return [
        _true_time(run, json.loads(line)["ts"]) - offset
        for log in run.place.logs()
        for line in _fresh(run, log).splitlines()
        if b" is silent: " in line
    ]


def _true_time(run: Run, ts: str, after_s: float = 0.0) -> float:
    """Unix time by this process's clock, of which the workers' may have been another."""
    told_s = datetime.fromisoformat(ts).timestamp()
    return run.place.clock.true_time(told_s, after_s) if run.place.clock else told_s


# ------------------------------------------------------------------------------------------ the living
def _burials(run: Run) -> list[str]:
    """Nobody who lives is found dead, or, where everybody is heard, silent."""
    living = {node for worker in run.place.workers if (node := run.place.node_of(worker))}
    found = []
    for log in run.place.logs():
        for line in _fresh(run, log).splitlines():
            dead, silent = b'"node_lost"' in line, b" is silent: " in line
            if dead and (node := json.loads(line)["node"]) in living:
                found.append(f"the living: {node} lives and was declared dead")
            elif silent and any(f.hears_all for f in run.faults):
                found.append(f"the living: {json.loads(line)['message']}")
    return found


# ------------------------------------------------------------------------------------------ no secrets
def _secrets(run: Run) -> list[str]:
    found = []
    for log in [*run.place.folder.glob("*.log"), run.place.folder / "provider.jsonl"]:
        told = found_in(_fresh(run, log).decode("utf-8", "replace"))
        found += [f"no secrets: {secret} in {log.name}" for secret in told]
    for path in (run.place.cluster.results / run.job_id).rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            planted = [secret for secret in SECRETS if secret != TEXT or path.name not in ITEMS]
            found += [f"no secrets: {secret} in {path.name}" for secret in planted if secret.encode() in data]
    found += [f"no secrets: {secret} in an event" for secret in run.place.ear.leaks]
    found += [f"no secrets: {leak}" for leak in store_leaks(run)]
    return found


def store_leaks(run: Run) -> list[str]:
    """Secrets anywhere in the store; texts anywhere but in the ledger's own keys."""
    client, ledger = run.place.store.client, run.place.cluster.app.keys.at("job") + ":"
    staging = run.place.cluster.app.keys.at("staging") + ":"
    found = []
    for key in client.scan_iter(count=1000):
        own = key.startswith((ledger, staging))
        found += [f"{secret} in {key}" for secret in found_in(_texts(client, key)) if not (own and secret == TEXT)]
    return found


def _texts(client: redis.Redis, key: str) -> str:
    try:
        match client.type(key):
            case "string":
                return str(client.get(key))
            case "list":
                return str(client.lrange(key, 0, -1))
            case "hash":
                return str(client.hgetall(key))
            case "zset":
                return str(client.zrange(key, 0, -1))
            case "set":
                return str(client.smembers(key))
            case "stream":
                return str(client.xrange(key))
    except UnicodeDecodeError:  # a broken message that was planted, or packed numbers
        return ""
    return ""


# ---------------------------------------------------------------------------------------------- counts
def _charges(run: Run) -> list[str]:
    """The report's books against the provider's. A job that was submitted twice has books of its second life alone."""
    status = run.status()
    if status is None or any(f.forgets for f in run.faults):
        return []
    before = time.monotonic()
    started = (before + time.monotonic()) / 2 - run.place.provider.stats()["uptime_s"]
    entries = provider_log(run.place)
    died = bool(_fresh(run, run.place.dead_nodes)) or bool(_takeovers(run)) or any(f.forgetful for f in run.faults)
    found = compare(
        status.counters, entries, excused=len(_struck(run, entries, started)) if died else 0,
        fails=any(f.bad_answers for f in run.faults), unreached=any(f.unreached for f in run.faults),
        died=died, opinions=run.place.cluster.opinions(run.job_id),
    )  # fmt: skip
    return [f"counts: {what}" for what in found]


def _books(run: Run) -> list[str]:
    """The run's part of all logs, replayed. It begins and ends at rest, so its books must balance."""
    parts = []
    for n, log in enumerate(run.place.logs()):
        part = run.place.folder / f"slice-{n}.jsonl"
        part.write_bytes(_dated(run, _fresh(run, log)))
        parts.append(part)
    loose = any(f.loose_log for f in run.faults)
    found = replay(parts, 10 * LIMIT if loose else LIMIT).books.violations.first
    if loose:  # a worker that comes back late tells of retries of units that others have ended meanwhile
        found = [violation for violation in found if not violation.endswith("has no outcome")]
    return [f"counts: {len(found)}: {found[0]}"] if found else []


def _dated(run: Run, lines: bytes) -> bytes:
    """The lines by this process's clock, where the workers' has stepped during the run."""
    if not any(f.name == "host_clock_step" for f in run.faults):
        return lines
    dated, now_s = [], 0.0
    for line in lines.splitlines():
        fields = json.loads(line) if line.startswith(b"{") else {}
        if "ts" in fields:
            now_s = _true_time(run, fields["ts"], now_s)
            fields["ts"] = datetime.fromtimestamp(now_s, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"
        dated.append(json.dumps(fields).encode() if fields else line)
    return b"\n".join(dated) + b"\n"


def _fresh(run: Run, log: Path) -> bytes:
    """What was written during the run."""
    with log.open("rb") as file:
        file.seek(run.log_sizes.get(str(log), 0))
        return file.read()
