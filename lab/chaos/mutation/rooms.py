"""Runs the tests against changed modules of whole rooms, each change by those tests that run the code it is in.

Which these are is recorded once, by a profiler, also in the processes that tests start (`mutants/rooms.json`). A change
is made in a copy of the tree, for the interpreter as for every process that a test starts. Tests run in a process that
is forked from one in which the libraries are loaded already, and none of Dicast is.
"""

from __future__ import annotations

import contextlib
import cProfile
import filecmp
import gc
import hashlib
import importlib
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

from lab.chaos.mutation.changes import Change, changes

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "mutants" / "rooms"
TREE, TRACES = FOLDER / "tree", FOLDER / "tree" / ".traces"
RECORD, MODULES = FOLDER / "rooms.json", FOLDER / "modules.txt"
ROOMS = ("access", "server", "operator", "reports", "analysis", "submission", "datasets")
TESTS = (
    "tests/access", "tests/operations", "tests/server", "tests/reports", "tests/statistics", "tests/assessment",
    "tests/testing", "tests/test_submission.py", "tests/test_datasets.py", "tests/test_job_file.py",
    "tests/test_ratings.py", "tests/test_results.py", "tests/test_rubrics.py", "tests/test_templates.py",
    "tests/test_item_kinds.py", "tests/test_images.py", "tests/test_judging_commands.py", "tests/test_refusals.py",
    "tests/test_requests.py", "tests/test_waiting.py", "tests/test_arranging.py", "tests/test_evaluate.py",
    "tests/test_cli.py", "tests/test_cli_governor.py", "tests/test_cli_run.py", "tests/judge/test_inquiring.py",
    "tests/judge/test_finishing.py", "tests/judge/test_gathering.py", "tests/judge/test_earlier_jobs.py",
    "tests/domain/test_probing.py",
)  # fmt: skip
"""Where the tests are that are to notice; not those of real workers (tests/e2e), which take minutes."""
LIBRARIES = ("numpy", "scipy.stats", "pandas", "fastapi", "celery", "hypothesis", "schemathesis")
"""Loaded before the first record, which then says what else is."""
LOADED_ALREADY = ("pytest.PytestAssertRewriteWarning", "hypothesis.errors.HypothesisSideeffectWarning")
FIRST_S, ALL_S = 10.0, 150.0
"""What the tests of a change may take together, by the record: at first, and if none of these has noticed."""
MOST_TESTS = 200
DEADLINE_S, RECORD_DEADLINE_S = 240.0, 900.0
CANNOT = "cannot be swapped"
HOOK = """
import atexit, os, pathlib, sys
if pathlib.Path({traces!r}).is_dir() and "pytest" not in sys.argv[0]:
    sys.path.append({root!r})
    from lab.chaos.mutation.rooms import CallTracer
    sys.path.remove({root!r})
    tracer = CallTracer()
    tracer.begin()
    atexit.register(lambda: pathlib.Path({traces!r}, str(os.getpid())).write_text("\\n".join(tracer.functions())))
"""

Told = Callable[[Change, str], None]


# ----------------------------------------------------------------------------------------------------- what tests run
class CallTracer:
    """Which functions of the tree were run, in all threads that began meanwhile."""

    def __init__(self) -> None:
        self._profiles: list[cProfile.Profile] = []
        self._counts: dict[tuple[int, str], int] = {}

    def begin(self) -> None:
        self._enable()
        threading.setprofile(lambda *_: self._enable())

    def _enable(self) -> None:
        self._profiles.append(cProfile.Profile())
        with contextlib.suppress(ValueError):  # another profiler is at work
            self._profiles[-1].enable()

    def functions(self) -> list[str]:
        """`file:qualified name` of those that were run since the last time."""
        found = set()
        for number, profile in enumerate(list(self._profiles)):
            for entry in profile.getstats():
                if isinstance(entry.code, str) or "/dicast/app/" not in entry.code.co_filename:
                    continue
                name = f"app/{entry.code.co_filename.partition('/dicast/app/')[2]}:{entry.code.co_qualname}"
                if self._counts.get((number, name)) != entry.callcount:
                    self._counts[number, name] = entry.callcount
                    found.add(name)
        return sorted(found)


class _Recorder:
    """Writes down what each test runs, and how long it takes; only of those that pass."""

    def __init__(self) -> None:
        self._tracer, self._bad = CallTracer(), set[str]()
        self.tests: dict[str, tuple[float, list[str]]] = {}

    def pytest_sessionstart(self) -> None:
        self._tracer.begin()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        began = time.monotonic()
        result = yield
        found = set(self._tracer.functions())
        for trace in TRACES.iterdir():
            found.update(trace.read_text().split("\n"))
            trace.unlink()
        if item.nodeid not in self._bad:
            self.tests[item.nodeid] = time.monotonic() - began, sorted(found - {""})
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self._bad.add(report.nodeid)
            self.tests.pop(report.nodeid, None)

    def pytest_sessionfinish(self) -> None:
        MODULES.write_text("\n".join(sorted({*_modules(), *filter(_is_library, sys.modules)})))


def _modules() -> list[str]:
    return MODULES.read_text().split("\n") if MODULES.exists() else []


def _is_library(name: str) -> bool:
    room = name.partition(".")[0]
    ours = ("dicast", "tests", "lab", "conftest", "sitecustomize")
    return not room.startswith("_") and room not in sys.stdlib_module_names and room not in ours


def record(*, anew: bool = False) -> None:
    """Run the tests without any change, file by file, and keep what they run; files that have not changed
    since the last time only `anew`."""
    _copy_tree()
    known: dict[str, Any] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    files = [file for test in TESTS for file in _files(test)]
    for file in files:
        digest = hashlib.sha256((ROOT / file).read_bytes()).hexdigest()
        if known.get(file, {}).get("digest") == digest and not anew:
            continue
        shutil.rmtree(TRACES, ignore_errors=True)
        TRACES.mkdir()
        answer = FOLDER / "answer.json"
        answer.unlink(missing_ok=True)
        began = time.monotonic()

        def tests(file: str = file, answer: Path = answer) -> int:
            recorder = _Recorder()
            status = int(_pytest([file], plugins=[recorder]))
            answer.write_text(json.dumps(recorder.tests))
            return status

        status = _in_fork(tests, RECORD_DEADLINE_S)
        found = json.loads(answer.read_text()) if answer.exists() else {}
        known[file] = {"digest": digest, "tests": found}
        print(f"{time.monotonic() - began:6.1f} s  {len(found):4} tests  {file}  {status or ''}", flush=True)
        RECORD.write_text(json.dumps(known))
    shutil.rmtree(TRACES, ignore_errors=True)


def _files(test: str) -> list[str]:
    found = sorted((ROOT / test).rglob("test_*.py")) if not test.endswith(".py") else [ROOT / test]
    return [str(file.relative_to(ROOT)) for file in found]


class Tests:
    """Which tests run which functions."""

    def __init__(self) -> None:
        self._of: dict[str, list[tuple[float, str]]] = defaultdict(list)
        for file in json.loads(RECORD.read_text()).values():
            for name, (seconds, functions) in file["tests"].items():
                for function in functions:
                    self._of[function].append((seconds, name))
                for module in {function.partition(":")[0] for function in functions}:
                    self._of[f"{module}:"].append((seconds, name))

    def of(self, change: Change, most_s: float) -> list[str]:
        """Those that run the function of a change, or any of its module if it is in none: of each file in turn the
        quickest, as many as fit into the time. Those of one file stand together."""
        file = str(change.file.relative_to(ROOT))
        turns: dict[str, list[tuple[float, str]]] = defaultdict(list)
        for seconds, name in sorted(self._of[f"{file}:{change.function}"] or self._of[f"{file}:"]):
            turns[name.partition("::")[0]].append((seconds, name))
        chosen: dict[str, list[str]] = defaultdict(list)
        in_turn = [test for turn in zip_longest(*turns.values()) for test in turn if test is not None]
        for seconds, name in in_turn[:MOST_TESTS]:
            most_s -= seconds
            if most_s < 0 and chosen:
                break
            chosen[name.partition("::")[0]].append(name)
        return [name for names in chosen.values() for name in names]


# --------------------------------------------------------------------------------------------------------- campaign
def sample(size: int, seed: int, only: Sequence[str] = ()) -> list[Change]:
    """So many changes, of each room in proportion to its lines (0: all), drawn by the seed; of these, the rooms'
    that are named."""
    chance, found = random.Random(seed), []
    files = {room: sorted((ROOT / "app" / room).rglob("*.py")) for room in ROOMS}
    lines = {room: sum(len(file.read_bytes().splitlines()) for file in files[room]) for room in ROOMS}
    for room in ROOMS:
        mine = [change for file in files[room] for change in changes(file)]
        chance.shuffle(mine)
        share = round(size * lines[room] / sum(lines.values())) if size else len(mine)
        found += [(room, change) for change in islice(filter(Change.compiles, mine), share)]
    chance.shuffle(found)
    return [change for room, change in found if not only or room in only]


def run(found: Sequence[Change], told: Told) -> None:
    """Tell of each change which test noticed it, or ''."""
    _copy_tree()
    tests, rest = Tests(), []
    within = [change for change in found if change.function]
    (FOLDER / "noticed").write_text("")
    _in_fork(lambda: _Session(within, tests).run(), math.inf)
    answers = [line.split("\t") for line in (FOLDER / "noticed").read_text().splitlines()]
    known = {int(number): test for number, test in answers}
    for number, change in enumerate(within):
        if known.get(number, CANNOT) == CANNOT:
            rest.append(change)
        else:
            told(change, known[number])
    rest += [change for change in found if not change.function]
    for number, change in enumerate(rest):
        told(change, _noticed(change, tests, number))


class _Session:
    """Stands in the place of pytest's loop over the tests, and lets a fork go through those of each change, in which
    the changed function has other code. So nothing is imported or collected but once."""

    def __init__(self, found: Sequence[Change], tests: Tests) -> None:
        self._found, self._tests, self._forked = found, tests, False

    def run(self) -> int:
        files = sorted({name.partition("::")[0] for change in self._found for name in self._tests.of(change, ALL_S)})
        status = _pytest(["-x", *files], plugins=[self])
        if self._forked:
            os._exit(status)
        return status

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """None in a fork: pytest goes on with the tests that it has left in `session`."""
        items, functions = {item.nodeid: item for item in session.items}, _functions()
        gc.freeze()
        for number, change in enumerate(self._found):
            path, before = TREE / change.file.relative_to(ROOT), change.file.read_bytes()
            names = self._tests.of(change, FIRST_S)
            more = [name for name in self._tests.of(change, ALL_S) if name not in set(names)]
            _write(path, change.text(), 2 * number)
            test = ""
            for part in (names, more):
                session.items = [items[name] for name in part if name in items]
                if not test and session.items:
                    test = self._noticing(change, functions)
                    if self._forked:
                        return None
            _write(path, before, 2 * number + 1)
            with (FOLDER / "noticed").open("a") as out:
                out.write(f"{number}\t{test}\n")
        return True

    def _noticing(self, change: Change, functions: dict[tuple[str, str], list[FunctionType]]) -> str:
        failed = FOLDER / "failed"
        failed.write_text("")
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            status = _waited(pid, DEADLINE_S)
            return CANNOT if status == 77 else "" if status == 0 else failed.read_text() or f"no end ({status})"
        self._forked = True
        os.setpgid(0, 0)
        if not _swapped(change, functions):
            os._exit(77)
        return ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._forked and report.failed:
            (FOLDER / "failed").write_text(report.nodeid)


def _functions() -> dict[tuple[str, str], list[FunctionType]]:
    """All functions of Dicast that there are, by file and qualified name."""
    found: dict[tuple[str, str], list[FunctionType]] = defaultdict(list)
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and "/dicast/app/" in each.__code__.co_filename:
            file = f"app/{each.__code__.co_filename.partition('/dicast/app/')[2]}"
            found[file, each.__code__.co_qualname].append(each)
    return found


def _swapped(change: Change, functions: dict[tuple[str, str], list[FunctionType]]) -> bool:
    """Give the changed function, and the one that it is made in, their new code. False if that cannot be: a module that
    is not loaded yet will be loaded with the change."""
    file = str(change.file.relative_to(ROOT))
    if not any(name[0] == file for name in functions):
        return True
    codes = {code.co_qualname: code for code in _codes(compile(change.text(), str(TREE / "dicast" / file), "exec"))}
    names = {change.function, change.function.partition(".<locals>")[0]}
    there = [function for name in names for function in functions.get((file, name), ())]
    try:
        for function in there:
            function.__code__ = codes[function.__code__.co_qualname]
    except (ValueError, KeyError):  # it reads other variables of what surrounds it
        return False
    return bool(there)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _codes(part)


def _noticed(change: Change, tests: Tests, number: int) -> str:
    path, before = TREE / change.file.relative_to(ROOT), change.file.read_bytes()
    first = tests.of(change, FIRST_S)
    try:
        _write(path, change.text(), 2 * number)
        rest = set(first)
        return _failing(first) or _failing([name for name in tests.of(change, ALL_S) if name not in rest])
    finally:
        _write(path, before, 2 * number + 1)


def _write(path: Path, text: bytes, number: int) -> None:
    path.write_bytes(text)
    past = 1_000_000_000 + int(time.time()) % 100_000_000 * 10 + number  # compiled code is known by its second
    os.utime(path, (past, past))


def _failing(tests: Sequence[str]) -> str:
    """The first test that fails, or ''. It is also a failure if they cannot be collected, or do not end."""
    if not tests:
        return ""
    failed = FOLDER / "failed"
    failed.write_text("")

    class First:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed:
                failed.write_text(report.nodeid)

    status = _in_fork(lambda: int(_pytest(["-x", *tests], plugins=[First()])), DEADLINE_S)
    return "" if status == 0 else failed.read_text() or f"they cannot be run ({status})"


def _pytest(arguments: Sequence[str], plugins: Sequence[object]) -> int:
    options = ["-q", "-n", "0", "-p", "no:cacheprovider", "--timeout", "60", "--tb", "line"]
    for warning in LOADED_ALREADY:
        options += ["-W", f"ignore::{warning}"]
    return int(pytest.main([*options, *arguments], plugins=list(plugins)))


def _in_fork(work: Callable[[], int], deadline_s: float) -> int:
    """What the work returns, in a process of its own that begins in the tree; -1 if it does not end in time."""
    _load_libraries()
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        os._exit(_forked(work))
    return _waited(pid, deadline_s)


def _waited(pid: int, deadline_s: float) -> int:
    """How a process ends; -1 if not in time. Nothing that it started is left."""
    end, status = time.monotonic() + deadline_s, 0
    try:
        while not (done := os.waitpid(pid, os.WNOHANG))[0]:
            if time.monotonic() > end:
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return -1
            time.sleep(0.02)
        status = os.waitstatus_to_exitcode(done[1])
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    return status


def _forked(work: Callable[[], int]) -> int:
    os.setpgid(0, 0)
    log = os.open(FOLDER / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.chdir(TREE)
    sys.path[:] = [str(TREE), *(path for path in sys.path if path not in ("", str(ROOT)))]
    os.environ["PYTHONPATH"] = str(TREE)
    try:
        return work()
    except BaseException as error:  # whatever it is, the fork must not go on with its parent's work
        print(repr(error), flush=True)
        return 3


def _load_libraries() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in _modules() or LIBRARIES:
            if name not in sys.modules:
                with contextlib.suppress(Exception):  # what cannot be loaded by itself is loaded by who needs it
                    importlib.import_module(name)


def _copy_tree() -> None:
    """Everything that belongs to the project, as it is now. What has not changed stays, with its compiled code."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    for name in subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines():
        source, copy = ROOT / name, TREE / name
        if source.is_symlink():
            if not copy.is_symlink():
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.symlink_to(source.readlink())
        elif source.exists() and not (copy.exists() and filecmp.cmp(source, copy, shallow=False)):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy)
    (TREE / "sitecustomize.py").write_text(HOOK.format(traces=str(TRACES), root=str(TREE)))
