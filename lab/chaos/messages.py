"""Spoils the messages that wait in the broker's queues."""

from __future__ import annotations

import json
import secrets

from lab.chaos.runs import Run

QUEUES = ("provider.sim", "dicast.control")
PICKLE = "application/x-python-serialize"
LOST_TOGETHER = 3


def copies(run: Run) -> list[tuple[str, str]]:
    """All messages that wait now, by queue."""
    client = run.place.store.client
    return [(queue, text) for queue in QUEUES for text in client.lrange(queue, 0, -1)]


def put(run: Run, messages: list[tuple[str, str]]) -> None:
    """Have messages delivered (again): half of them as they were, half under tags of their own."""
    for queue, text in messages:
        message = json.loads(text)
        if run.chance.random() < 0.5:
            message["properties"]["delivery_tag"] = secrets.token_hex(16)
        run.place.store.client.rpush(queue, json.dumps(message))


def double(run: Run) -> None:
    put(run, copies(run))


def lose(run: Run) -> None:
    """Take some away that nobody has seen."""
    for queue in QUEUES:
        for _ in range(run.chance.randint(1, LOST_TOGETHER)):
            run.place.store.client.rpop(queue)


def reverse(run: Run) -> None:
    for queue in QUEUES:
        run.place.store.client.eval(
            "local all = redis.call('LRANGE', KEYS[1], 0, -1) redis.call('DEL', KEYS[1]) "
            "for _, text in ipairs(all) do redis.call('LPUSH', KEYS[1], text) end",
            1,
            queue,
        )


def put_broken(run: Run) -> None:
    """Messages of strangers: no JSON, wrong types, unknown tasks, a pickle, a unit that is none."""
    real = [text for _, text in copies(run)]
    bodies = ["", "!", "\x00\xff", "[1]", "{}", "null", json.dumps({"body": "x"}), "[" * 5000]
    if real:
        message = json.loads(real[0])
        bodies += [
            json.dumps({**message, "body": "AAAA"}),
            json.dumps({**message, "content-type": PICKLE, "body": "gASVBgAAAAAAAACMAmhplC4="}),
            json.dumps({**message, "headers": {**message["headers"], "task": "os.system"}}),
            json.dumps({**message, "headers": {**message["headers"], "dicast": [1]}}),
            json.dumps({**message, "body": "W1tdLHt9LHt9XQ=="}),
        ]
    for _ in range(4):
        run.place.store.client.rpush(run.chance.choice(QUEUES), run.chance.choice(bodies))
