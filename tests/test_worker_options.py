"""What `celery worker` refuses, and how many calls its options allow."""

import os
import subprocess
import sys

import click
import pytest
from celery.concurrency.solo import TaskPool as Solo
from celery.utils.sysinfo import AUTO_CONCURRENCY

from dicast.app.operator.worker_options import (
    REJECTED_OPTIONS,
    OptionRefused,
    calls,
    check,
    check_queues,
    check_roles,
    given_options,
)
from dicast.workers.runtime.pool import TaskPool


@pytest.mark.parametrize(
    ("options", "most"),
    [({}, 7), ({"concurrency": 3}, 3), ({"concurrency": 3, "autoscale": (9, 2)}, 9), ({"autoscale": None}, 7)],
)
def test_calls(options, most):
    assert calls(options, 7) == most


@pytest.mark.parametrize("name", REJECTED_OPTIONS)
def test_an_option_that_would_do_nothing_is_refused_with_its_flag(name):
    with pytest.raises(OptionRefused, match=REJECTED_OPTIONS[name][0]):
        check({}, frozenset({name}))


@pytest.mark.parametrize("options", [{"pool": Solo}, {"concurrency": AUTO_CONCURRENCY}])
def test_other_pools_and_a_number_of_cpus_are_refused(options):
    with pytest.raises(OptionRefused):
        check(options, frozenset())


def test_what_is_set_by_default_is_not_given():
    check({"pool": TaskPool, "concurrency": 5}, frozenset())
    seen = []

    @click.command()
    @click.option("--time-limit", type=float)
    @click.option("--concurrency", default="5")
    def worker(**_):
        seen.append(given_options())

    worker.main(["--time-limit", "3"], standalone_mode=False)
    worker.main([], standalone_mode=False)
    assert seen == [{"time_limit"}, frozenset()]
    assert given_options() == frozenset()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"queues": "dicast.control,provider.opnai"},
            "-Q names no queue .*: provider.opnai; did you mean 'provider.openai'",
        ),
        ({"queues": ["nothing"]}, "-Q names no queue .*: nothing; there are dicast.control, provider.openai$"),
        ({"exclude_queues": "provider.x"}, "-X names no queue .*: provider.x"),
    ],
)
def test_a_queue_that_is_not_there_is_refused_in_one_line(options, message):
    with pytest.raises(OptionRefused, match=message) as refused:
        check_queues(options, ["provider.openai", "dicast.control"])
    assert "\n" not in str(refused.value)


def test_a_role_that_is_none_is_refused():
    check_roles(["openai", "control"], ["openai", "control"])
    with pytest.raises(
        OptionRefused, match=r"DICAST_NODE_ROLES names no pool and no role: opnai; did you mean 'openai'"
    ):
        check_roles(["control", "opnai"], ["openai", "control"])


def test_queues_that_are_there_are_accepted():
    check_queues(
        {"queues": "provider.openai,dicast.control", "exclude_queues": None}, ["provider.openai", "dicast.control"]
    )


@pytest.mark.parametrize("option", ["-c0", "--concurrency=0"])
def test_a_worker_without_calls_is_refused(option, tmp_path):
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "DICAST_STATE_DIR": str(tmp_path),
        "REDIS_URL": "redis://127.0.0.1:1",
    }
    command = [sys.executable, "-m", "celery", "-A", "dicast", "worker", option]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "at least 1 call open, got 0" in done.stderr
