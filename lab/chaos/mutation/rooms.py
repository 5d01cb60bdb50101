"""Runs the tests against changed modules of whole rooms, each change by those tests that run the lines it is in.

Which these are is recorded once, by the package coverage, also in the processes that tests start
(`mutants/rooms/rooms.json`). Lines are kept by their distance from the beginning of their function, so that a record
outlives changes elsewhere. A change is made in a copy of the tree, for the interpreter as for every process that a test
starts. Tests run in a process that is forked from one in which the libraries are loaded already, and none of Dicast is.

A test that fails with a change is run again without it at once, and counts only if it passes then: neither a test that
fails now and then nor one that a busy machine makes too late speaks for itself. A test that does not end with the
change, and does without it, counts too; how many of the changes were noticed in that way alone is printed.
"""

from __future__ import annotations

import ast
import contextlib
import filecmp
import gc
import hashlib
import importlib
import itertools
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import pytest

from lab.chaos.mutation.changes import Change, changes
from lab.chaos.mutation.tracer import ROOMS, LineTracer

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "mutants" / "rooms"
TREE, TRACES = FOLDER / "tree", FOLDER / "tree" / ".traces"
RECORD, MODULES, NOTICED = FOLDER / "rooms.json", FOLDER / "modules.txt", FOLDER / "noticed"
TESTS = (
    "tests/access", "tests/operations", "tests/server", "tests/reports", "tests/statistics", "tests/assessment",
    "tests/testing", "tests/judge", "tests/domain", "tests/cluster", "tests/terminal", "tests",
)  # fmt: skip
"""Where the tests are that are to notice: of `tests` those right below it."""
NO_TESTS = (
    "test_documents", "test_figures", "test_readme", "test_tutorial", "test_doc_examples", "test_monitoring_files",
    "test_deploy_files", "test_ops_files", "test_celery_hooks", "test_package", "test_replay", "test_stack",
    "test_message_trace", "test_early_worker", "test_sweep",
)  # fmt: skip
"""Those that are about documents or the installation, and take long; nor are tests of real workers here (tests/e2e)."""
LIBRARIES = ("numpy", "scipy.stats", "pandas", "fastapi", "celery", "hypothesis", "schemathesis")
"""Loaded before the first record, which then says what else is."""
LOADED_ALREADY = ("pytest.PytestAssertRewriteWarning", "hypothesis.errors.HypothesisSideeffectWarning")
FIRST_S, ALL_S = 10.0, 200.0
"""What the tests of a change may take together, by the record: at first, and if none of these has noticed."""
MOST_TESTS = 400
RECORD_DEADLINE_S = 1800.0
TEST_DEADLINE_S, SPARE_S, SLOWNESS = 120, 120.0, 8.0
"""One test may take the first. Those of a change may take `SPARE_S`, and so many times what they took when recorded."""
CANNOT, CANNOT_STATUS = "cannot be swapped", 77
HANGS = "does not end"
HOOK = """
import atexit, os, pathlib, sys
if pathlib.Path({traces!r}).is_dir() and "pytest" not in sys.argv[0]:
    sys.path.append({root!r})
    from lab.chaos.mutation.tracer import LineTracer
    sys.path.remove({root!r})
    tracer = LineTracer({root!r})
    tracer.begin()
    atexit.register(lambda: pathlib.Path({traces!r}, str(os.getpid())).write_text(tracer.text()))
"""

Told = Callable[[Change, str], None]


# ----------------------------------------------------------------------------------------------------- what tests run
class _Lines:
    """Which function of a module each line is in: the innermost one, and its first line."""

    def __init__(self) -> None:
        self._of: dict[str, dict[int, tuple[str, int]]] = {}

    def functions(self, file: str, lines: Iterable[int]) -> dict[str, int]:
        """`file:qualified name` of the functions that have some of the lines, with the lines as bits of a number,
        which begin with that of the first line."""
        if file not in self._of:
            self._of[file] = {}
            for name, node in _defined(ast.parse((ROOT / file).read_bytes()), ""):
                for line in range(node.body[0].lineno, (node.end_lineno or 0) + 1):
                    self._of[file][line] = name, node.lineno
        found: dict[str, int] = defaultdict(int)
        for line in lines:
            if function := self._of[file].get(line):
                found[f"{file}:{function[0]}"] |= 1 << line - function[1]
        return found


class _Recorder:
    """Writes down what each test runs, and how long it takes; only of those that pass."""

    def __init__(self) -> None:
        self._tracer, self._lines, self._bad = LineTracer(str(TREE)), _Lines(), set[str]()
        self.tests: dict[str, tuple[float, dict[str, str]]] = {}
        self._of_processes: dict[str, dict[str, int]] = {}

    def pytest_sessionstart(self) -> None:
        self._tracer.begin()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        began = time.monotonic()
        self._tracer.next(item.nodeid)
        result = yield
        found: dict[str, int] = defaultdict(int)
        for trace in TRACES.iterdir():
            with contextlib.suppress(ValueError):  # its writer was killed
                self._add(found, json.loads(trace.read_text()).get("", {}))
            trace.unlink()
        self._of_processes[item.nodeid] = found
        if item.nodeid not in self._bad:
            self.tests[item.nodeid] = time.monotonic() - began, {}
        return result

    def _add(self, found: dict[str, int], lines: dict[str, list[int]]) -> None:
        for file, numbers in lines.items():
            for function, bits in self._lines.functions(file, numbers).items():
                found[function] |= bits

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed and not report.skipped:
            self._bad.add(report.nodeid)
            self.tests.pop(report.nodeid, None)

    def pytest_sessionfinish(self) -> None:
        lines = self._tracer.lines()
        for name, (seconds, _) in list(self.tests.items()):
            found = self._of_processes[name]
            self._add(found, lines.get(name, {}))
            self.tests[name] = seconds, {function: f"{bits:x}" for function, bits in found.items()}
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
    files = [file for folder in TESTS for file in _files(folder)]
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


def _files(folder: str) -> list[str]:
    found = (ROOT / folder).glob("test_*.py") if folder == "tests" else (ROOT / folder).rglob("test_*.py")
    return [str(file.relative_to(ROOT)) for file in sorted(found) if file.stem not in NO_TESTS]


class _Run(NamedTuple):
    """One test's run of one function; the bits are as those of `_Lines`."""

    seconds: float
    test: str
    bits: int


class Tests:
    """Which tests run which lines."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._of: dict[str, list[_Run]] = defaultdict(list)
        for file in json.loads(RECORD.read_text()).values():
            for name, (seconds, functions) in file["tests"].items():
                self.seconds[name] = seconds
                for function, bits in functions.items():
                    self._of[function].append(_Run(seconds, name, int(bits, 16)))
        self._texts: dict[str, str] = {}

    def of(self, change: Change, most_s: float) -> list[str]:
        """Those that run the lines in which a change is reached, or its function where none does, or else its module:
        of each file in turn the quickest, as many as fit into the time. Those of one file stand together."""
        turns: dict[str, list[str]] = defaultdict(list)
        for runs in self._reaching(change):
            for test in [run.test for run in sorted(runs)]:
                turn = turns[test.partition("::")[0]]
                if test not in turn:
                    turn.append(test)
            if sum(map(len, turns.values())) >= MOST_TESTS:
                break
        chosen: dict[str, list[str]] = defaultdict(list)
        in_turn = [test for turn in zip_longest(*turns.values()) for test in turn if test is not None]
        for name in in_turn[:MOST_TESTS]:
            most_s -= self.seconds[name]
            if most_s < 0 and chosen:
                break
            chosen[name.partition("::")[0]].append(name)
        return [name for names in chosen.values() for name in names]

    def deadline_s(self, names: Sequence[str]) -> float:
        return SPARE_S + SLOWNESS * sum(self.seconds.get(name, 0.0) for name in names)

    def _reaching(self, change: Change) -> Iterator[list[_Run]]:
        file, place = str(change.file.relative_to(ROOT)), change.reached
        if place.function:
            runs = self._of[f"{file}:{place.function}"]
            first = _first_line(change.file, place.function)
            wanted = sum(1 << line - first for line in range(place.first, place.last + 1) if line >= first)
            yield [run for run in runs if run.bits & wanted] or runs
            if runs:
                return
        if place.assigned:
            name = re.compile(rf"\b{re.escape(place.assigned)}\b")
            yield [
                run for function in list(self._of) if name.search(self._text(function)) for run in self._of[function]
            ]
        yield [run for function in list(self._of) if function.startswith(f"{file}:") for run in self._of[function]]

    def _text(self, function: str) -> str:
        if function not in self._texts:
            file = function.partition(":")[0]
            for inner, text in _texts(ROOT / file):
                self._texts[f"{file}:{inner}"] = text
            self._texts.setdefault(function, "")
        return self._texts[function]


def _first_line(file: Path, function: str) -> int:
    return next((node.lineno for name, node in _defined(ast.parse(file.read_bytes()), "") if name == function), 0)


def _texts(file: Path) -> Iterator[tuple[str, str]]:
    text = file.read_text() if file.exists() else ""
    for name, node in _defined(ast.parse(text), ""):
        yield name, "\n".join(text.splitlines()[node.lineno - 1 : node.end_lineno])


def _defined(node: ast.AST, place: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for child in ast.iter_child_nodes(node):
        inner = place
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{place}{child.name}", child
            inner = f"{place}{child.name}.<locals>."
        elif isinstance(child, ast.ClassDef):
            inner = f"{place}{child.name}."
        yield from _defined(child, inner)


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
    NOTICED.write_text("")
    _in_fork(lambda: _Session(within, tests).run(), math.inf)
    known = dict(line.split("\t") for line in NOTICED.read_text().splitlines())
    for number, change in enumerate(within):
        if known.get(str(number), CANNOT) == CANNOT:
            rest.append(change)
        else:
            told(change, known[str(number)])
    rest += [change for change in found if not change.function]
    for change in rest:
        told(change, _noticing(change, tests, lambda names, _: _failing(names, tests.deadline_s(names))))


class _Failure:
    """Notes in a file which test has failed, or else is running, for the parent of this process."""

    FILE = FOLDER / "failed"

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.FILE.write_text(f"{nodeid}\t{HANGS}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.FILE.write_text(f"{report.nodeid}\t{HANGS if 'Timeout (>' in report.longreprtext else ''}")

    @classmethod
    def read(cls, status: int) -> tuple[str, str]:
        """The test that failed, and `HANGS` if it did not end. Both are '' if all passed."""
        name, _, how = cls.FILE.read_text().partition("\t") if status else ("", "", "")
        return (name or f"no test can be run ({status})", how) if status else ("", "")


class _Forked(Exception):
    """Raised in the fork that is to go through the tests, past all that its parent goes on with."""


class _Session:
    """Stands in the place of pytest's loop over the tests, and lets a fork go through those of each change, in which
    the changed function has other code. So nothing is imported or collected but once."""

    def __init__(self, found: Sequence[Change], tests: Tests) -> None:
        self._found, self._tests, self._forked = found, tests, False
        self._functions: dict[tuple[str, str], list[FunctionType]] = {}
        self._items: dict[str, pytest.Item] = {}

    def run(self) -> int:
        files = sorted({name.partition("::")[0] for change in self._found for name in self._tests.of(change, ALL_S)})
        status = _pytest(["-x", *files], plugins=[self, _Failure()])
        if self._forked:
            os._exit(status)
        return status

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """None in a fork: pytest goes on with the tests that it has left in `session`."""
        self._items, self._functions = {item.nodeid: item for item in session.items}, _functions()
        gc.freeze()
        for number, change in enumerate(self._found):
            try:
                test = _noticing(change, self._tests, lambda names, plant: self._failing(session, names, plant))
            except _Forked:
                return None
            with NOTICED.open("a") as out:
                out.write(f"{number}\t{test}\n")
        return True

    def _failing(self, session: pytest.Session, names: Sequence[str], plant: Change | None) -> tuple[str, str]:
        session.items = [self._items[name] for name in names if name in self._items]
        _Failure.FILE.write_text("")
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            status = _waited(pid, self._tests.deadline_s(names))
            return (CANNOT, "") if status == CANNOT_STATUS else _Failure.read(status)
        self._forked = True
        os.setpgid(0, 0)
        if plant and not _swapped(plant, self._functions):
            os._exit(CANNOT_STATUS)
        raise _Forked


def _noticing(change: Change, tests: Tests, failing: Callable[[Sequence[str], Change | None], tuple[str, str]]) -> str:
    """The test that fails with a change and passes without it, or '', by what tells of tests which of them fails."""
    path, before = TREE / change.file.relative_to(ROOT), change.file.read_bytes()
    first = tests.of(change, FIRST_S)
    for part in (first, [name for name in tests.of(change, ALL_S) if name not in set(first)]):
        left = part
        while left:
            _write(path, change.text())
            test, how = failing(left, change)
            _write(path, before)
            if not test:
                break
            if test not in left or not failing([test], None)[0]:
                return f"{test} {how}".strip()
            left = left[left.index(test) + 1 :]
    return ""


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
    found = list(_codes(compile(change.text(), str(TREE / "dicast" / file), "exec")))
    codes = {code.co_qualname: code for code in found}
    names = {change.function, change.function.partition(".<locals>")[0]}
    there = [function for name in names for function in functions.get((file, name), ())]
    if any(sum(code.co_qualname == name for code in found) > 1 for name in names):  # such as a property and its setter
        return False
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


_written = itertools.count()


def _write(path: Path, text: bytes) -> None:
    path.write_bytes(text)
    past = 1_000_000_000 + int(time.time()) % 100_000_000 * 10 + next(_written)  # compiled code is known by its second
    os.utime(path, (past, past))


def _failing(names: Sequence[str], deadline_s: float) -> tuple[str, str]:
    """The first test that fails, and how. It is also a failure if they cannot be collected, or do not end."""
    _Failure.FILE.write_text("")
    return _Failure.read(_in_fork(lambda: _pytest(["-x", *names], plugins=[_Failure()]), deadline_s))


def _pytest(arguments: Sequence[str], plugins: Sequence[object]) -> int:
    options = ["-q", "-n", "0", "-p", "no:cacheprovider", "--timeout", str(TEST_DEADLINE_S), "--tb", "line"]
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
