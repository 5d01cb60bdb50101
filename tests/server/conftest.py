from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from dicast.app.access.scopes import Scope
from dicast.app.application import Dicast
from tests.server.serving import client, installation, served


@pytest.fixture
def dicast(tmp_path: Path, redis_url: str) -> Dicast:
    return installation(tmp_path, redis_url)


@pytest.fixture
def address(dicast: Dicast) -> Iterator[str]:
    with served(dicast) as url:
        yield url


@pytest.fixture
def token(dicast: Dicast) -> str:
    """Lets its holder do everything that is not a node's."""
    scopes = [Scope.JOB_SUBMIT, Scope.JOB_READ, Scope.POOL_ADMIN, Scope.NODE_ADMIN]
    return dicast.tokens.issue("tester", scopes, ttl_s=600)


@pytest.fixture
def http(address: str, token: str) -> Iterator[httpx2.Client]:
    with client(address, token) as made:
        yield made
