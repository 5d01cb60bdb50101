"""Odd messages against every queue of a real worker: no loop of it ends, none of them stays, others' work goes on.

    python -m lab.chaos.odd_messages --count 100000         prints what became of them, and how many loops ended
    python -m lab.chaos.odd_messages --count 500 --seed 7   the same 500 again

A message begins as one that Celery might have sent, and then some of it becomes odd: bytes, envelope, headers,
properties, body, callbacks, chords, types, sizes, encodings, times.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from dicast.app.ledger.keys import LedgerKeys
from dicast.app.pipeline import messages as names
from dicast.workers.admission.request import QUEUE_PREFIX
from dicast.workers.broker.dead_letters import DeadLetters
from lab.chaos.installation import StoreProcess
from tests.e2e.cluster import Cluster, Simulated, a_job, until

CONTROL = (names.CONTROL_QUEUE, names.BEAT_QUEUE)
GATED = tuple(QUEUE_PREFIX + pool for pool in ("sim", "claude"))
QUEUES = (*CONTROL, *GATED)
BROADCASTS = "/0.celery.pidbox"
TASKS = {
    names.EVALUATE: ["odd"], names.PLAN_LANE: ["odd", "i", 0], names.GATHER_PAGE: ["odd", "i", 0, 0],
    names.FINISH_JOB: ["odd"], names.HOUSEKEEPING: [], names.GOVERNOR: [],
    names.JUDGE_DIMENSION: ["odd", "i", 0, 0, "0", 0], names.JUDGE_BATCH: ["odd", "i", 0, 0, "b0", 0],
}  # fmt: skip
GATED_TASKS = (names.JUDGE_DIMENSION, names.JUDGE_BATCH)
POOLS = """
default = "sim"
[pools.sim]
provider = "simulated"
base_url = "{url}/v1"
dialect = "openai"
[pools.claude]
provider = "simulated"
base_url = "{url}"
dialect = "anthropic"
"""
LONG = 200_000
BATCH = 500
DRAIN_S = 60.0
JOB_UNITS = 40

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 3, 2**31, 2**63, 2**70, -(2**70), 0.5, -0.0, 1e308, float("inf"), float("-inf"),
    float("nan"), "", "x", " ", "0", "-1", "b0", "odd", "None", "é\u202e\x00\n", "\ud800", "\udfff\ud800", "x" * LONG,
    "{dicast}:job", "*", "a|b|c", "../..", [], [1], [1, 2, 3], [None, None], [-1, 5], ["a", "b"], [1e400, None],
    [[]], [{}], {}, {"a": 1}, {"\ud800": 1}, {"task": 1}, {"task": "dicast.plan_lane"}, {"__type__": "decimal"},
    {"__type__": "datetime", "__value__": 5}, {"__type__": "uuid", "__value__": "x"}, [[[[[[[[]]]]]]]],
)  # fmt: skip
TIMES = ("2001-01-01T00:00:00", "9999-12-31T23:59:59", "0001-01-01T00:00:00+23:59", "2024-02-30", "soon", "12:00", 5)
HEADERS = (
    "task", "id", "lang", "root_id", "parent_id", "group", "group_index", "shadow", "eta", "expires", "retries",
    "timelimit", "argsrepr", "kwargsrepr", "origin", "ignore_result", "stamps", "stamped_headers", "meth",
    "replaced_task_nesting", "dicast", "dicast-signature", "dicast-returns", "x-delivery-count", "compression",
    "get", "update", "__class__", "lease", "chord", "chain", "callbacks", "errbacks", "args", "kwargs", "delivery_info",
    "properties", "hostname", "headers", "called_directly", "is_eager", "reply_to", "correlation_id", "utc",
)  # fmt: skip
PLACES = ("correlation_id", "reply_to", "delivery_mode", "delivery_info", "priority", "body_encoding", "delivery_tag")
GATE_FIELDS = ("job", "project", "agent", "dimension", "unit", "page", "pool", "model", "input_tokens", "output_tokens",
               "elsewhere")  # fmt: skip
ENCODINGS = ("utf-8", "ascii", "latin-1", "utf-16", "rot13", "zlib", "hex", "none", "", "binary", 5, None, "idna")
TYPES = ("application/json", "application/x-python-serialize", "application/x-yaml", "text/plain", "", 5, None, [])


class Odd:
    """A generator of odd messages; the same seed makes the same ones, but for `job`, the id and the incarnation of one
    that runs meanwhile."""

    def __init__(self, seed: int) -> None:
        self._chance, self._number = random.Random(seed), 0
        self.job = ("odd", "i")

    def messages(self, count: int) -> Iterator[tuple[str, bytes]]:
        """Queues, or the channel of broadcasts, and what is put there."""
        for _ in range(count):
            self._number += 1
            queue = self._chance.choice(QUEUES)
            if self._chance.random() < 0.02:
                queue = BROADCASTS
            yield queue, self._raw(queue)

    def _raw(self, queue: str) -> bytes:
        chance = self._chance
        if chance.random() < 0.08:
            return self._garbage()
        message = self._plain(queue)
        for _ in range(chance.choice((1, 1, 1, 2, 3, 6))):
            chance.choice((
                self._in_headers, self._in_headers, self._in_headers, self._in_properties, self._in_envelope,
                self._in_body, self._in_body, self._in_embed, self._in_gate, self._in_times,
            ))(message)  # fmt: skip
        body = message["body"]
        if isinstance(body, list):
            message["body"] = b64encode(json.dumps(body).encode()).decode()
        return json.dumps(message).encode()

    def _garbage(self) -> bytes:
        chance = self._chance
        return chance.choice((
            b"", b"\x00", b"\xff\xfe\x00", b"null", b"[]", b"{}", b"[1,2,3]", b'"text"', b"1e999", b"NaN",
            b"[" * 5000, b'{"a":' * 3000, chance.randbytes(chance.randrange(1, 400)),
            b'{"body":"","headers":{},"properties":{"delivery_tag":"t","delivery_info":{"exchange":NaN,"routing_key":1}}}',
        ))  # fmt: skip

    def _plain(self, queue: str) -> dict[str, Any]:
        """As Celery sends it."""
        chance = self._chance
        gated = queue in GATED
        fitting = [task for task in TASKS if (task in GATED_TASKS) == gated]
        task = chance.choice(fitting if chance.random() < 0.95 else [*TASKS, "os.system", "celery.chord", "celery.map"])
        args = list(TASKS.get(task, []))
        if args and chance.random() < 0.3:
            args[:2] = self.job[: len(args)]
        name = f"odd-{self._number}"
        return {
            "body": [args, {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}],
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": {
                "lang": "py", "task": task, "id": name, "shadow": None, "eta": None, "expires": None, "group": None,
                "group_index": None, "retries": 0, "timelimit": [None, None], "root_id": name, "parent_id": None,
                "argsrepr": "()", "kwargsrepr": "{}", "origin": "odd", "ignore_result": gated, "stamps": {},
                "stamped_headers": None, "replaced_task_nesting": 0,
                "dicast": {"job": args[0] if args else "", "project": "default", "agent": "judge-0",
                           "dimension": "dim-0", "unit": "0.0.0", "pool": queue.removeprefix(QUEUE_PREFIX),
                           "model": "m", "input_tokens": 100, "output_tokens": 100, "elsewhere": False},
            },
            "properties": {
                "correlation_id": name, "reply_to": name, "delivery_mode": 2, "priority": 0, "body_encoding": "base64",
                "delivery_info": {"exchange": "dicast", "routing_key": queue}, "delivery_tag": name,
            },
        }  # fmt: skip

    # ------------------------------------------------------------------ what becomes odd
    def _value(self) -> Any:
        return deepcopy(self._chance.choice(VALUES))

    def _spoil(self, place: Any, name: str) -> None:
        if not isinstance(place, dict):
            return
        if self._chance.random() < 0.15:
            place.pop(name, None)
        else:
            place[name] = self._value()

    def _in_headers(self, message: dict[str, Any]) -> None:
        self._spoil(message["headers"], self._chance.choice(HEADERS))

    def _in_properties(self, message: dict[str, Any]) -> None:
        properties = message["properties"]
        if self._chance.random() < 0.3 and isinstance(properties, dict):
            place = self._chance.choice(("exchange", "routing_key", "priority", "redelivered"))
            self._spoil(properties.get("delivery_info"), place)
            if self._chance.random() < 0.3 and isinstance(properties.get("delivery_info"), dict):
                properties["delivery_info"]["routing_key"] = self._chance.choice(QUEUES)
        else:
            self._spoil(properties, self._chance.choice(PLACES))

    def _in_envelope(self, message: dict[str, Any]) -> None:
        match self._chance.randrange(5):
            case 0:
                message["content-encoding"] = self._chance.choice(ENCODINGS)
            case 1:
                message["content-type"] = self._chance.choice(TYPES)
            case 2:
                message["headers"] = self._value()
            case 3:
                message["properties"] = self._value()
            case 4:
                message["body"] = self._value()

    def _in_body(self, message: dict[str, Any]) -> None:
        chance, body = self._chance, message["body"]
        if not isinstance(body, list) or len(body) != 3:
            return
        if chance.random() < 0.4 and isinstance(body[0], list):
            if body[0]:
                body[0][chance.randrange(len(body[0]))] = self._value()
            else:
                body[0] = [self._value()]
        elif chance.random() < 0.5:
            body[chance.randrange(3)] = self._value()
        else:
            message["body"] = chance.choice((
                [], [1, 2, 3], [[], {}], [[], {}, {}, {}], [[], [], {}], [[], {"odd": 1}, {}], [[], {}, [1]],
                "AAAA", "not base64 é", b64encode(b"\xff\xfe").decode(), b64encode(b"[" * 5000).decode(),
                b64encode(b"x" * LONG * 8).decode() if chance.random() < 0.02 else "W10=",
            ))  # fmt: skip

    def _in_embed(self, message: dict[str, Any]) -> None:
        chance, body = self._chance, message["body"]
        if not isinstance(body, list) or len(body) != 3 or not isinstance(body[2], dict):
            return
        name = chance.choice(("callbacks", "errbacks", "chain", "chord", "other"))
        if chance.random() < 0.4:
            body[2][name] = self._value()
            return
        signature = {
            "task": chance.choice((names.PLAN_LANE, "nobody's", "celery.chord", 5)), "args": ["odd", 0],
            "kwargs": {}, "options": {"queue": chance.choice((names.CONTROL_QUEUE, "nowhere", 7))},
            "subtask_type": chance.choice((None, None, "group", "chord", "odd")), "immutable": True,
        }  # fmt: skip
        if chance.random() < 0.5:
            self._spoil(signature, chance.choice(tuple(signature)))
        body[2][name] = signature if name == "chord" else [signature] * chance.choice((1, 2))
        if name == "chord" and isinstance(message["headers"], dict):
            message["headers"]["group"] = chance.choice((f"odd-group-{self._number}", "", self.job[0], self._value()))
            message["headers"]["group_index"] = chance.choice((0, 1, self._value()))

    def _in_gate(self, message: dict[str, Any]) -> None:
        headers = message["headers"]
        if isinstance(headers, dict):
            self._spoil(headers.get("dicast"), self._chance.choice(GATE_FIELDS))

    def _in_times(self, message: dict[str, Any]) -> None:
        if isinstance(message["headers"], dict):
            soon = (datetime.now(UTC) + timedelta(seconds=self._chance.uniform(-5, 2))).isoformat()
            name = self._chance.choice(("eta", "expires"))
            message["headers"][name] = self._chance.choice((*TIMES, soon))


class Testbed:
    """Store, provider and one worker, all real."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self.store = StoreProcess(folder / "store")
        self.provider = Simulated("--log", str(folder / "provider.jsonl"), "--latency", "0.05")
        self.cluster = Cluster(folder, self.store.url, POOLS.format(url=self.provider.base_url), **settings)

    def start(self) -> None:
        self.worker = self.cluster.worker()

    def stop(self) -> None:
        self.cluster.stop()
        self.provider.stop()
        self.store.stop()

    def put(self, odd: Iterator[tuple[str, bytes]]) -> None:
        pipe = self.store.client.pipeline(transaction=False)
        for queue, raw in odd:
            if queue == BROADCASTS:
                pipe.publish(queue, raw)
            else:
                pipe.lpush(queue, raw)
        pipe.execute()

    def incarnation(self, job_id: str) -> str:
        app = self.cluster.app
        return str(app.store.hget(LedgerKeys(app.keys).job(job_id), "incarnation"))

    def left(self) -> dict[str, int]:
        """What waits, or is in somebody's hands."""
        client, unacked = self.store.client, self.cluster.app.keys.at("unacked") + ":*"
        kept = [key for key in client.keys(unacked) if client.type(key) == "hash"]
        found = {name: client.llen(name) for name in QUEUES if client.type(name) == "list"}
        return {name: n for name, n in {**found, **{key: client.hlen(key) for key in kept}}.items() if n}

    def kept(self) -> str:
        """What is in somebody's hands, as it came."""
        client, unacked = self.store.client, self.cluster.app.keys.at("unacked") + ":*"
        held = [client.hgetall(key) for key in client.keys(unacked) if client.type(key) == "hash"]
        return "\n".join(f"{tag[:50]!r}: {entry[:1000]}" for some in held for tag, entry in some.items())

    def ended(self) -> Counter[str]:
        """Loops that ended, as the worker's own log tells, and the worker itself."""
        counts: Counter[str] = Counter()
        for line in self.cluster.logs():
            if line["event"] in ("loop_failed", "worker_ends", "suspended", "gate_closed"):
                counts[f"{line['event']} {line.get('loop', '')}".strip()] += 1
            elif "Task exception was never retrieved" in str(line.get("message")):
                counts["a task nobody watched"] += 1
        if self.worker.process.poll() is not None:
            counts["the worker"] += 1
        return counts

    def set_aside(self) -> dict[str, int]:
        return DeadLetters(self.cluster.app.store, self.cluster.app.keys).counts()


def bombard(place: Testbed, count: int, seed: int) -> list[str]:
    """Put `count` odd messages into the queues, some hundreds at a time, while jobs run; what was found wrong."""
    odd, found = Odd(seed), []
    for number, first in enumerate(range(0, count, BATCH)):
        job_id = place.cluster.submit(a_job(id=f"busy-{number}", agents=2, dimensions=2, items=JOB_UNITS // 4))
        odd.job = job_id, place.incarnation(job_id)
        place.put(odd.messages(min(BATCH, count - first)))
        try:
            report = place.cluster.report(job_id, DRAIN_S)
            if report["scored"] != JOB_UNITS:
                found.append(f"job {job_id}: {report['scored']} of {JOB_UNITS} scored")
            until(lambda: not place.left(), "the queues are empty", DRAIN_S)
        except TimeoutError as error:
            found.append(f"after {first + BATCH} messages: {error}; left: {place.left()}\n{place.kept()}")
        if place.worker.process.poll() is not None:
            found.append(f"the worker ended:\n{place.worker.log.read_text()[-3000:]}")
        if found:
            break
    return found + [f"{n} times: {what}" for what, n in place.ended().items()]


def main() -> int:
    """Exit status 1 if a loop ended, a message stayed or a job did not end as it should."""
    parser = argparse.ArgumentParser("python -m lab.chaos.odd_messages", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", type=Path, help="where the worker's log is to go")
    wish = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # its processes end with it
    with tempfile.TemporaryDirectory(prefix="dicast-odd-") as folder:
        place = Testbed(Path(folder), MAX_CONCURRENT_LLM_CALLS="10")
        try:
            place.start()
            began = time.monotonic()
            found = bombard(place, wish.count, wish.seed)
            print(*found, sep="\n", flush=True)  # before the worker has to end, which one that is in trouble may not do
            took_s = time.monotonic() - began
            aside = place.set_aside()
            if wish.log:
                wish.log.write_bytes(place.worker.log.read_bytes())
        finally:
            place.stop()
    print(f"{wish.count:,} odd messages in {took_s:.0f} s (seed {wish.seed}), {sum(aside.values()):,} set aside:")
    for reason, n in sorted(aside.items(), key=lambda item: -item[1]):
        print(f"  {n:8,} {reason}")
    print("0 loops ended" if not found else f"{len(found)} things found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
