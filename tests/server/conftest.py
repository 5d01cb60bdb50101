from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator

import httpx2
import pytest
import redis

from dicast.app.access.scopes import Scope
from dicast.app.application import Dicast
from tests.conftest import redis_server as serve_store
from tests.server.serving import client, installation, served

_databases = itertools.cycle(range(16))
second_store = pytest.fixture(scope="session", name="second_store")(serve_store.__wrapped__)
"""A store beside `redis_server`, whose databases belong to the tests' modules: there, each test has one of its own."""


@pytest.fixture(scope="module")
def module_url(second_store: str) -> Iterator[str]:
    """The URL of a database of the module's own, empty before and after."""
    url = f"{second_store}?db={next(_databases)}"
    with redis.Redis.from_url(url) as made:
        made.flushdb()
        yield url
        made.flushdb()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, module_url: str) -> Iterator[tuple[Dicast, str]]:
    """An application and its server, for all tests of a module: to start one for each would take most of their time."""
    dicast = installation(tmp_path_factory.mktemp("shared"), module_url)
    with served(dicast) as url:
        yield dicast, url


@pytest.fixture
def dicast(shared: tuple[Dicast, str]) -> Dicast:
    """With an empty store and without files."""
    found, _ = shared
    found.store.flushdb()
    for folder in (found.settings.upload_dir, found.settings.results_dir):
        shutil.rmtree(folder, ignore_errors=True)
    return found


@pytest.fixture
def address(dicast: Dicast, shared: tuple[Dicast, str]) -> str:
    return shared[1]


@pytest.fixture
def token(dicast: Dicast) -> str:
    """Lets its holder do everything that is not a node's."""
    scopes = [Scope.JOB_SUBMIT, Scope.JOB_READ, Scope.POOL_ADMIN, Scope.NODE_ADMIN]
    return dicast.tokens.issue("tester", scopes, ttl_s=600)


@pytest.fixture
def http(address: str, token: str) -> Iterator[httpx2.Client]:
    with client(address, token) as made:
        yield made
