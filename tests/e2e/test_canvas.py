"""`evaluate` in Celery's canvases and with its calling options: a real worker, and programs as users write them."""

from __future__ import annotations

import json
from textwrap import dedent

import pytest

from tests import processes
from tests.e2e.cluster import DEADLINE_S, ROOT, a_job, one_worker
from tests.e2e.conftest import POOL

pytestmark = pytest.mark.slow

UNITS = 2
PRELUDE = f"""
import json
from datetime import timedelta
from celery import chain, chord, group, signature
from celery.result import AsyncResult
from dicast.app.application import app
from dicast.app.tasks import evaluate

def job(**more):
    return {{**json.loads({json.dumps(json.dumps(a_job(agents=1, dimensions=UNITS)))}), **more}}

def last(**options):
    return signature("celery.accumulate", app=app, queue="dicast.control", options=options)

def tell(value):
    print(json.dumps(value))

WAIT_S = {DEADLINE_S}
"""


@pytest.fixture(scope="module")
def installation(tmp_path_factory, redis_server):
    with one_worker(tmp_path_factory.mktemp("canvas"), f"{redis_server}?db=15", POOL) as cluster:
        yield cluster


@pytest.fixture
def program(installation):
    """Runs a program beside the worker; gives what it tells, or the last line of its error."""

    def run(code):
        done = processes.run(["-c", PRELUDE + dedent(code)], installation.environ, ROOT, timeout=2 * DEADLINE_S)
        return json.loads(done.stdout) if done.returncode == 0 else done.stderr.splitlines()[-1]

    return run


def test_a_groups_results_are_its_jobs_reports(program):
    first, second, ids = program("""
        result = group(evaluate.s(job()), evaluate.s(job(id="named"))).apply_async()
        tell([*result.get(timeout=WAIT_S), [child.id for child in result.children]])
    """)
    assert first["scored"] == second["scored"] == UNITS
    assert first["job_id"] == ids[0]
    assert second["job_id"] == "named" != ids[1]


def test_a_chord_is_joined_when_its_jobs_have_ended(program):
    (reports,) = program("""
        result = chord([evaluate.s(job()), evaluate.s(job(id="second"))])(last())
        tell(result.get(timeout=WAIT_S))
    """)
    assert [report["scored"] for report in reports] == [UNITS, UNITS]


def test_a_chain_goes_on_with_the_report_also_of_a_job_that_is_not_its_first_task(program):
    of_second, first = program("""
        result = chain(evaluate.s(job(id="one")), evaluate.si(job(id="two")), last())()
        tell([result.get(timeout=WAIT_S), AsyncResult("one", app=app).get(timeout=WAIT_S)])
    """)
    assert of_second[0]["job_id"] == "two"
    assert first["scored"] == UNITS


def test_a_link_is_called_with_the_report(program):
    (report,) = program("""
        evaluate.apply_async((job(),), link=last(task_id="linked"))
        tell(AsyncResult("linked", app=app).get(timeout=WAIT_S))
    """)
    assert report["scored"] == UNITS


def test_an_errback_is_called_when_the_job_is_not_judged(program):
    """The errback is the old kind, which is called with the task's id."""
    (failed,) = program("""
        evaluate.apply_async((job(id="never"),), task_id="waits-for-never", expires=-1, link_error=last(task_id="told"))
        tell(AsyncResult("told", app=app).get(timeout=WAIT_S))
    """)
    assert failed == "waits-for-never"


def test_the_task_id_that_is_given_is_the_jobs(program):
    assert program('tell(evaluate.apply_async((job(),), task_id="mine").get(timeout=WAIT_S))')["job_id"] == "mine"


def test_a_job_of_another_id_can_be_waited_for_under_both(program):
    name, ours, its_own = program("""
        result = evaluate.apply_async((job(id="its-own"),), task_id="another")
        tell([result.id, result.get(timeout=WAIT_S), AsyncResult("its-own", app=app).get(timeout=WAIT_S)])
    """)
    assert name == "another"
    assert ours == its_own


def test_a_job_waits_for_its_time(program, installation):
    before = program("""
        before = app.ledger.wall_ms()
        evaluate.apply_async((job(id="later"),), countdown=3).get(timeout=WAIT_S)
        tell(before)
    """)
    assert installation.app.ledger.status("later").started_ms >= before + 3000


def test_a_job_that_is_not_started_in_time_is_revoked(program, installation):
    told = program("""
        evaluate.apply_async((job(id="late"),), eta=app.now() + timedelta(seconds=3), expires=1).get(timeout=WAIT_S)
    """)
    assert told == "celery.exceptions.TaskRevokedError: expired"
    assert installation.app.ledger.status("late").counters["calls"] == 0


def test_a_job_may_be_sent_by_name(program):
    """As `celery call` does, and programs that know nothing of Dicast."""
    name, report = program("""
        sent = app.send_task("dicast.evaluate", args=(job(),), queue="dicast.control")
        tell([sent.id, sent.get(timeout=WAIT_S)])
    """)
    assert report["job_id"] == name


@pytest.mark.parametrize("code, told", [
    (
        'app.send_task("dicast.evaluate", args=({"items": []},), queue="dicast.control").get(timeout=WAIT_S)',
        "dimensions: is missing; write dimensions: [{id: clear, instructions: Is it clear?}]",
    ),
    ("evaluate.apply_async((job(),), countdown='soon')", "TypeError: countdown is a number of seconds, got 'soon'"),
    ("evaluate.apply_async((job(),), eta=5)", "TypeError: eta is a datetime, got 5"),
    (
        "evaluate.apply_async((job(),), expires='never')",
        "TypeError: expires is a number of seconds or a datetime, got 'never'",
    ),
    (
        "evaluate(job())",
        "TypeError: evaluate is a task: evaluate.delay(job).get() gives the report, `dicast run` does it here",
    ),
    (
        "evaluate.apply((job(),))",
        "TypeError: evaluate cannot run eagerly: a job needs workers; use evaluate.delay(job), or `dicast run --local`",
    ),
])  # fmt: skip
def test_what_cannot_be_done_is_refused_with_a_reason(program, installation, code, told):
    before = len(list(installation.app.ledger.jobs()))
    assert program(code) == told
    assert len(list(installation.app.ledger.jobs())) == before
