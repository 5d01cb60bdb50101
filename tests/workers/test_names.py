"""Names at the broker."""

import itertools
import re

import pytest

from dicast.app.application import create_app
from dicast.workers.broker.profiles import Names, plain

ODD = ["a", "A", "a b", "a@b", "a%40b", "provider.openai", "blue.pidbox", "@", "%"]


def test_names_of_two_installations_never_meet():
    names = [
        Names(namespace).qualify(name) for namespace in ["", *ODD] for name in ("provider.a", "provider.a.b", "dicast")
    ]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9._~%@-]+", name) for name in names)


@pytest.mark.parametrize("namespace", ["", *ODD])
def test_the_plain_name_is_found_again(namespace):
    assert plain(Names(namespace).qualify("provider.a:b.c")) == "provider.a:b.c"


def test_an_installation_knows_its_queues_by_their_plain_names():
    apps = [create_app({"REDIS_URL": "redis://127.0.0.1:1/0", **more}) for more in ({}, {"DICAST_NAMESPACE": "blue"})]
    default, blue = ({name: app.amqp.queues[name] for name in ("provider.openai", "dicast.control")} for app in apps)
    assert {name: queue.name for name, queue in default.items()} == {name: name for name in default}
    assert {name: queue.name for name, queue in blue.items()} == {name: f"{name}@blue" for name in blue}
    assert all(q.name == q.routing_key for q in itertools.chain(default.values(), blue.values()))
    assert [app.amqp.queues["provider.openai"].exchange.name for app in apps] == ["dicast", "dicast@blue"]
    assert [app.backend.task_keyprefix for app in apps] == [b"celery-task-meta-", b"{blue}:results:celery-task-meta-"]
