"""What `celery worker` refuses, and how many calls its options allow."""

import click
import pytest
from celery.concurrency.solo import TaskPool as Solo
from celery.utils.sysinfo import AUTO_CONCURRENCY

from dicast.app.commands.worker_options import REFUSED, OptionRefused, calls, check, given
from dicast.workers.runtime.pool import TaskPool


@pytest.mark.parametrize(
    ("options", "most"),
    [({}, 7), ({"concurrency": 3}, 3), ({"concurrency": 3, "autoscale": (9, 2)}, 9), ({"autoscale": None}, 7)],
)
def test_calls(options, most):
    assert calls(options, 7) == most


@pytest.mark.parametrize("name", REFUSED)
def test_an_option_that_would_do_nothing_is_refused_with_its_flag(name):
    with pytest.raises(OptionRefused, match=REFUSED[name][0]):
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
        seen.append(given())

    worker.main(["--time-limit", "3"], standalone_mode=False)
    worker.main([], standalone_mode=False)
    assert seen == [{"time_limit"}, frozenset()]
    assert given() == frozenset()
