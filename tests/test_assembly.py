"""How the pipeline's parts are built and handed to each other."""

import ast
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dicast.app.application import create_app
from dicast.app.assembly import Services
from dicast.app.domain.plan import Intervals
from dicast.workers.nodes.registry import Node
from dicast.workers.runtime.result_backend import RedisBackend

APP = Path(__file__).parents[1] / "app"
PARAMETERS_MAX = 8


def constructors():
    for path in sorted([*APP.glob("pipeline/*.py"), *APP.glob("ledger/*.py"), APP / "assembly.py"]):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                yield pytest.param(node.args, id=f"{path.name}:{node.lineno}")


@pytest.mark.parametrize("parameters", list(constructors()))
def test_a_part_is_handed_no_more_than_eight_others_and_no_functions(parameters):
    given = [*parameters.args[1:], *parameters.kwonlyargs]
    assert len(given) <= PARAMETERS_MAX, [parameter.arg for parameter in given]
    assert not [p.arg for p in given if p.annotation is not None and "Callable" in ast.unparse(p.annotation)]


async def test_the_applications_intervals_are_the_parts_own(redis_url, tmp_path):
    pools = tmp_path / "pools.toml"
    pools.write_text('[pools.sim]\nprovider = "simulated"\nbase_url = "http://127.0.0.1:1/v1"\n')
    app = create_app({"REDIS_URL": redis_url, "DICAST_POOLS_FILE": str(pools), "DICAST_STATE_DIR": str(tmp_path)})
    app.node = Node.for_this_process("w@h", limit=1, slots=1)
    app.intervals = Intervals(unclaimed_ms=7, due_every_s=0.01, pool_gone_ms=3)
    services = Services(app)
    try:
        assert services.ledger.intervals == app.intervals
    finally:
        await services.close()
        app.close()


@pytest.mark.parametrize("factor, page_still_ms, beacon_s", [("0.2", 6000, 8.0), ("0.8", 24_000, 12.0)])
def test_a_campaigns_clocks_are_the_applications_intervals(redis_url, factor, page_still_ms, beacon_s):
    code = (
        "import lab.chaos.hooks; from dicast.app.application import app; "
        "print(app.intervals.page_still_ms, app.node_intervals.beacon_s, app.registry.intervals.beacon_s)"
    )
    environ = {**os.environ, "CHAOS_CLOCKS": factor, "CHAOS_ARM": "/nowhere", "REDIS_URL": redis_url}
    done = subprocess.run([sys.executable, "-c", code], env=environ, cwd=APP.parent, capture_output=True, text=True,
                          check=True)  # fmt: skip
    assert done.stdout.split() == [str(page_still_ms), str(beacon_s), str(beacon_s)]


def test_a_campaigns_pauses_between_steps_of_batches_are_the_applications(redis_url):
    code = (
        "import lab.chaos.hooks; from dicast.app.application import app; from dicast.app.pipeline import batches; "
        "print(app.intervals.batch_forms_ms, app.intervals.batch_poll_ms[0], batches.AGAIN_MS)"
    )
    environ = {**os.environ, "CHAOS_BATCHES": "0.1", "REDIS_URL": redis_url}
    done = subprocess.run([sys.executable, "-c", code], env=environ, cwd=APP.parent, capture_output=True, text=True,
                          check=True)  # fmt: skip
    assert done.stdout.split() == ["300", "100", "500"]


def test_threads_that_come_while_settings_are_loaded_get_the_whole_of_them(tmp_path, redis_url):
    """One of them kept a result backend that stores nothing, and every job was refused from then on."""
    app = create_app({"REDIS_URL": redis_url, "DICAST_STATE_DIR": str(tmp_path)})
    loading, configuration = threading.Event(), app.configuration

    def slowly():
        loading.set()
        time.sleep(0.3)  # for the other thread to come
        return configuration()

    app._pending_defaults.clear()
    app.add_defaults(slowly)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(lambda: app.backend)
        assert loading.wait(5)
        second = threads.submit(lambda: app.backend)
        assert isinstance(first.result(), RedisBackend)
        assert isinstance(second.result(), RedisBackend)
