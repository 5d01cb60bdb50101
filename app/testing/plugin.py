"""The fixture `judge`: texts are judged in one job after the last test has run, and then decide each test's outcome.

    def test_the_answer_is_plain(judge):
        judge(text=answer("How do I reset it?"), prompt="How do I reset it?", dimensions=["clarity"], at_least=4)

pytest loads this plugin wherever Dicast is installed, so nothing else of Dicast is imported before a test uses
`judge`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.runner import runtestprotocol

if TYPE_CHECKING:
    from dicast.app.testing.judging import Judged, Judging

JUDGING = pytest.StashKey["Judging"]()
ASKED = pytest.StashKey["list[Judged]"]()
DEFERRED = pytest.StashKey["list[tuple[pytest.Item, list[pytest.TestReport]]]"]()
MARKER = "dicast(dimensions=, at_least=): what the judges are asked about this test's texts, unless a call says it"
Judge = Callable[..., "Judged"]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("dicast", "texts judged by Dicast")
    group.addoption("--dicast-job", metavar="FILE", help="The job whose judges and dimensions `judge` uses.")
    group.addoption(
        "--dicast-local", action="store_true", help="Start store, worker and beat, and stop them at the end."
    )
    parser.addini("dicast_job", "the job whose judges and dimensions the fixture `judge` uses; its items are left out")
    parser.addini("dicast_timeout", "seconds after which a job of this run is cancelled", default="600")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)
    _timeout_s(config)
    if (job := config.getoption("--dicast-job")) and not Path(job).is_file():
        raise pytest.UsageError(f"--dicast-job: {job} is no file{_suggestion(Path(job))}")
    config.stash[DEFERRED] = []


def pytest_unconfigure(config: pytest.Config) -> None:
    if JUDGING in config.stash:
        config.stash[JUDGING].close()
        del config.stash[JUDGING]


def pytest_sessionstart(session: pytest.Session) -> None:
    """Start what is local. With xdist this is done once, by the process that runs no tests."""
    config = session.config
    if config.getoption("--dicast-local") and not _is_xdist_worker(config) and config.getoption("dist", "no") != "no":
        _judging(config).start()


@pytest.fixture
def judge(request: pytest.FixtureRequest) -> Judge:
    """Have a text judged: `judge(text=..., dimensions=[...], at_least=4)`. The test ends, and its outcome is decided
    when the job has ended; reading `.scores` or `.opinions` of the returned object waits for them at once."""
    marker = request.node.get_closest_marker("dicast")
    defaults: dict[str, Any] = dict(marker.kwargs) if marker is not None else {}
    if marker is not None and (marker.args or defaults.keys() - {"dimensions", "at_least"}):
        wrong = [*map(repr, marker.args), *sorted(defaults.keys() - {"dimensions", "at_least"})]
        raise pytest.UsageError(f"the marker dicast takes dimensions= and at_least=, got {', '.join(wrong)}")
    requests: list[Judged] = request.node.stash.setdefault(ASKED, [])

    def ask(
        text: str, *, prompt: str | None = None, reference: str | None = None,
        dimensions: Sequence[str] | None = None, at_least: float | Mapping[str, float] | None = None,
    ) -> Judged:  # fmt: skip
        names = dimensions if dimensions is not None else defaults.get("dimensions", ())
        least = at_least if at_least is not None else defaults.get("at_least")
        judged = _judging(request.config).ask(
            request.node.nodeid, text, prompt=prompt, reference=reference, dimensions=names, at_least=least
        )
        requests.append(judged)
        return judged

    return ask


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test. If it passed and has texts to be judged, its reports are deferred until their scores are there."""
    if "judge" not in getattr(item, "fixturenames", ()):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    if item.stash.get(ASKED, []) and all(report.passed for report in reports):
        item.config.stash[DEFERRED].append((item, reports))
    else:
        _log_reports(item, reports)
    return True


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Run all tests, then the job, and report the tests that wait for it."""
    try:
        result = yield
    except KeyboardInterrupt:
        raise
    except BaseException:  # pytest stops early by raising; waiting tests are reported all the same
        _hand_out(session)
        raise
    _hand_out(session)
    return result


def _hand_out(session: pytest.Session) -> None:
    deferred, session.config.stash[DEFERRED] = session.config.stash[DEFERRED], []
    if not deferred:
        return
    trouble = None
    try:
        _judging(session.config).flush()
    except Exception as error:  # noqa: BLE001  (whatever it is, every waiting test fails with it)
        trouble = f"not judged: {type(error).__name__}: {error}"
    for item, reports in deferred:
        wrong = [trouble] if trouble else [judged.wrong for judged in item.stash[ASKED]]
        if text := "\n".join(filter(None, wrong)):
            _fail(next(report for report in reports if report.when == "call"), text)
        _log_reports(item, reports)


def _fail(report: pytest.TestReport, text: str) -> None:
    expected = hasattr(report, "wasxfail")
    report.outcome = "skipped" if expected else "failed"
    report.longrepr = text


def _log_reports(item: pytest.Item, reports: list[pytest.TestReport]) -> None:
    _as_reported_by_xdist(item)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def _timeout_s(config: pytest.Config) -> float:
    value = config.getini("dicast_timeout")
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise pytest.UsageError(f"dicast_timeout: must be a number of seconds above 0, got {value!r}")
    return seconds


def _suggestion(path: Path) -> str:
    from dicast.config.settings import nearest_file  # noqa: PLC0415  (nothing of Dicast is imported without need)

    near = nearest_file(path)
    return f"; did you mean {near}?" if near else ""


def _is_xdist_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def _as_reported_by_xdist(item: pytest.Item) -> None:
    """Set the index that an xdist worker sends with each report to that of this test."""
    if _is_xdist_worker(item.config):
        for plugin in item.config.pluginmanager.get_plugins():
            if hasattr(plugin, "item_index") and hasattr(plugin, "sendevent"):
                plugin.item_index = item.session.items.index(item)


def _judging(config: pytest.Config) -> Judging:
    if JUDGING not in config.stash:
        from dicast.app.testing.judging import Judging  # noqa: PLC0415  (takes long to load)

        job = config.getoption("--dicast-job") or config.getini("dicast_job")
        if not job:
            raise pytest.UsageError("`judge` needs a job with judges and dimensions: --dicast-job FILE, or dicast_job")
        path = str(config.rootpath / job) if not config.getoption("--dicast-job") else str(job)
        local = config.getoption("--dicast-local") and not _is_xdist_worker(config)
        if not Path(path).is_file():
            raise pytest.UsageError(f"dicast_job: {path} is no file{_suggestion(Path(path))}")
        timeout_s = _timeout_s(config)
        config.stash[JUDGING] = Judging(path, local=bool(local), timeout_s=timeout_s)
    return config.stash[JUDGING]
