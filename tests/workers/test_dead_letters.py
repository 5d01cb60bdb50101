"""What was set aside is counted once, though the store's answer is lost."""

import orjson
import redis

from dicast.workers.broker.dead_letters import KEPT, DeadLetters
from dicast.workers.store.connection import connect
from dicast.workers.store.keys import Keys

KEYS = Keys("test")


def test_a_message_that_is_set_aside_twice_for_a_lost_answer_counts_once(redis_url):
    client = connect(redis_url)
    quarantine, set_aside = DeadLetters(client, KEYS), client.execute_command

    def answer_is_lost(*args, **options):
        set_aside(*args, **options)
        return set_aside(*args, **options)

    client.execute_command = answer_is_lost
    for _ in range(2):  # the same message, from two queues' ends
        quarantine.add("q", "unreadable", b"\xff")
    assert quarantine.counts() == {"unreadable": 2}
    assert [orjson.loads(entry)["message"] for entry in client.lrange(KEYS.dead_letters, 0, -1)] == ["\\xff", "\\xff"]


def test_only_the_newest_are_kept(redis_url):
    client = redis.Redis.from_url(redis_url, decode_responses=True)
    quarantine = DeadLetters(client, KEYS)
    client.rpush(KEYS.dead_letters, *map(str, range(KEPT)))
    quarantine.add("q", "unreadable", "text")
    assert client.llen(KEYS.dead_letters) == KEPT
    assert client.lindex(KEYS.dead_letters, -1) == str(KEPT - 2)
