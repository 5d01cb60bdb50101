from __future__ import annotations

import gzip
import heapq
import io
import logging
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dicast.app import logs
from lab import replay
from lab.replay import MAX_LINE_BYTES, ReplayResult, main
from lab.replay import replay as replayed

Line = dict[str, Any]


def at(seconds: float) -> str:
    return f"2025-01-01T{int(seconds // 3600):02}:{int(seconds // 60) % 60:02}:{seconds % 60:06.3f}Z"


def event(name: str, seconds: float | None = None, **fields: object) -> Line:
    line = {"event": name, "agent": "strict", "dimension": "clear", **fields}
    return line if seconds is None else {**line, "ts": at(seconds)}


def write(path: Path, lines: Iterable[Line | bytes]) -> Path:
    raw = b"".join((line if isinstance(line, bytes) else orjson.dumps(line)) + b"\n" for line in lines)
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


def judge(tmp_path: Path, *files: list[Line | bytes], limit: int = 2, skew_s: float = 0.0) -> ReplayResult:
    return replayed([write(tmp_path / f"w{i}.log", lines) for i, lines in enumerate(files)], limit, skew_s)


def call(lease: str, start: float, end: float, **fields: object) -> list[Line]:
    return [event("acquired", start, lease=lease, **fields), event("released", end, lease=lease, **fields)]


# ------------------------------------------------------------------------------------------------------------- tables
def test_what_holds_is_proved(tmp_path: Path) -> None:
    lines = [*call("a", 0, 1), *call("b", 0.5, 2), event("retry", 2, job="j", unit="u", status_code=429)]
    lines += [*call("c", 3, 4), event("judged", 4, job="j", unit="u", score=3)]
    verdict = judge(tmp_path, sorted(lines, key=lambda line: line["ts"]))
    assert verdict.proved
    books = verdict.books
    assert (books.peak, books.calls, books.retries, books.rate_limited) == (2, 3, 1, 1)
    assert str(verdict).endswith("\nHOLDS: at most 2 calls open of 2 allowed, all released, every retry resolved")


PLANTED: dict[str, tuple[list[Line], int, str]] = {
    "above the limit": (
        [event(name, at_s, lease=i) for name, at_s in (("acquired", 0), ("released", 9)) for i in range(3)],
        3,
        "3 calls open, the limit is 2",
    ),
    "above the limit, nameless": (
        [event("acquired") for _ in range(3)] + [event("released") for _ in range(3)],
        3,
        "3 calls open, the limit is 2",
    ),
    "below zero": ([event("acquired"), event("released"), event("released")], 3, "released more than was acquired"),
    "released twice": (
        [*call("a", 0, 1), event("released", 2, lease="a"), *call("b", 60, 61)],
        3,
        "lease a was released but not acquired, or twice",
    ),
    "released first": (
        [event("released", 0, lease="a"), event("acquired", 0.5, lease="a")],
        2,
        "lease a was released before, at ",
    ),
    "acquired twice": ([event("acquired", 0, lease="a"), *call("a", 1, 2)], 2, "lease a was acquired again, first at "),
    "never released": ([*call("a", 0, 1), event("acquired", 2, lease="b")], 3, "lease b was never released"),
    "never released, nameless": ([event("acquired")], 1, "this call was never released"),
    "the store's own count": (
        [event("acquired", 0, lease="a", active_slots=3), event("released", 1, lease="a")],
        1,
        "tells of 3 active slots, the limit is 2",
    ),
    "an unresolved 429": (
        [
            *call("a", 0, 1),
            event("retry", 1, job="j", unit="u", status_code=429),
            event("judged", 2, job="j", unit="v"),
        ],
        3,
        "retry after 429 of unit j u has no outcome",
    ),
    "an outcome before the retry": (
        [
            *call("a", 0, 1),
            event("failed", 1, job="j", unit="u"),
            event("retry", 3, job="j", unit="u", status_code=None),
        ],
        4,
        "retry after None of unit j u has no outcome",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_violation_is_named_with_its_line(tmp_path: Path, name: str) -> None:
    lines, number, text = PLANTED[name]
    verdict = judge(tmp_path, lines)
    assert verdict.books.violations.count == 1
    assert not verdict.proved
    assert verdict.books.violations.first[0].startswith(f"{tmp_path}/w0.log:{number} {text}")


@pytest.mark.parametrize("outcome", ["judged", "failed", "corrupt"])
def test_outcomes_resolve_a_retry_also_on_another_node(tmp_path: Path, outcome: str) -> None:
    first = [*call("a", 0, 1), event("retry", 1, job="j", unit="u", status_code=429)]
    assert judge(tmp_path, first, [*call("b", 3, 4), event(outcome, 4, job="j", unit="u")]).proved


@pytest.mark.parametrize("status, resolved", [("cancelled", True), ("completed", False)])
def test_a_cancelled_job_resolves_its_retries(tmp_path: Path, status: str, resolved: bool) -> None:
    lines = [*call("a", 0, 1), event("retry", 1, job="j", unit="u", status_code=429)]
    assert judge(tmp_path, [*lines, event("job_completed", 2, job="j", status=status)]).proved == resolved
    assert not judge(tmp_path, [*lines, event("job_completed", 2, job="other", status=status)]).proved


def test_units_without_ids_are_told_apart_by_what_they_judge(tmp_path: Path) -> None:
    lines = [*call("a", 0, 1), event("retry", 1, status_code=503)]
    assert judge(tmp_path, [*lines, event("judged", 2)]).proved
    assert not judge(tmp_path, [*lines, {**event("judged", 2), "dimension": "true"}]).proved


def test_a_lost_node_gives_its_leases_back(tmp_path: Path) -> None:
    dead = [event("acquired", i, lease=f"d{i}", node="w0") for i in range(2)]
    alive = [{"event": "node_lost", "ts": at(10.02), "node": "w0"}, *call("x", 10, 11, node="w1")]
    assert judge(tmp_path, dead, alive).proved
    assert not judge(tmp_path, dead, [{"event": "node_lost", "ts": at(10), "node": "w7"}]).proved


def test_a_lost_node_may_have_worked_until_it_was_found_dead(tmp_path: Path) -> None:
    """Its death is dated back by a second, for it may have been found late; it may also have been found at once."""
    dead = [*call("a", 5, 10, node="w0"), event("acquired", 10, lease="b", node="w0")]
    found = {"event": "node_lost", "ts": at(10.01), "node": "w0"}
    assert judge(tmp_path, dead, [found]).proved
    assert judge(tmp_path, dead, [found, found]).proved  # by two who looked at the same time
    assert not judge(tmp_path, [*dead, event("released", 10, lease="c", node="w0")], [found]).proved


def ended(lease: str, seconds: float, node: str = "w0", reason: str = "expired") -> Line:
    """As somebody else's log tells of it."""
    return {"event": "released", "ts": at(seconds), "lease": lease, "node": node, "reason": reason}


def test_what_others_end_has_ended(tmp_path: Path) -> None:
    """The holder is dead, silent, or tells of it when it comes back; one was killed before it told of a grant."""
    mute = [event("acquired", i, lease=f"d{i}", node="w0") for i in range(2)]
    others = [ended("d0", 10), ended("d1", 10), *call("x", 11, 12, node="w1"), *call("y", 11, 12, node="w1")]
    assert judge(tmp_path, mute, others).proved
    assert judge(tmp_path, [*mute, event("released", 20, lease="d0", node="w0")], others).proved
    assert judge(tmp_path, mute, [*others, ended("untold", 13)]).proved
    lost = {"event": "node_lost", "ts": at(10.02), "node": "w0"}
    assert judge(tmp_path, mute, [*others, lost]).proved
    assert judge(tmp_path, mute, [lost, *others]).proved
    assert not judge(tmp_path, mute, [ended("d0", 10)]).proved
    twice = [event("released", 20 + i, lease="d0", node="w0") for i in range(2)]
    assert not judge(tmp_path, [*mute, *twice], others).proved


def test_two_nodes_in_one_millisecond_are_given_the_benefit_of_the_order(tmp_path: Path) -> None:
    assert judge(tmp_path, call("a", 1, 2), call("b", 0, 1), limit=1).proved
    assert judge(tmp_path, call("b", 0, 1), call("a", 1, 2), limit=1).proved


def test_one_node_in_one_millisecond_is_not(tmp_path: Path) -> None:
    lines = [event("acquired", 0, lease="a"), event("acquired", 1, lease="b"), event("released", 1, lease="a")]
    verdict = judge(tmp_path, [*lines, event("released", 2, lease="b")], limit=1)
    assert verdict.books.violations.first[0].endswith("w0.log:2 2 calls open, the limit is 1")


def test_clocks_apart_need_the_skew_that_is_told(tmp_path: Path) -> None:
    behind, ahead = call("b", 5, 6), call("a", 0, 5.3)
    assert not judge(tmp_path, ahead, behind, limit=1).proved
    assert judge(tmp_path, ahead, behind, limit=1, skew_s=0.4).proved
    assert not judge(tmp_path, ahead, behind, limit=1, skew_s=0.2).proved


def test_a_call_shorter_than_the_skew_is_no_violation(tmp_path: Path) -> None:
    assert judge(tmp_path, call("a", 0, 0.1) + call("b", 1, 1.1), limit=1, skew_s=20).proved


def test_files_are_merged_by_time_and_named_once(tmp_path: Path) -> None:
    early, late = write(tmp_path / "z.log", call("a", 0, 1)), write(tmp_path / "a.log.gz", call("b", 2, 3))
    verdict = replayed([late, early, tmp_path / "." / "z.log"], 1)
    assert verdict.proved
    assert (verdict.reading.files, verdict.reading.lines, verdict.books.calls) == (2, 4, 2)


def test_threads_may_write_out_of_order(tmp_path: Path) -> None:
    lines = [event("acquired", 1, lease="b"), event("released", 0.9, lease="a"), event("released", 2, lease="b")]
    assert judge(tmp_path, [event("acquired", 0, lease="a"), *lines], limit=1).proved


def test_lines_that_are_no_events_are_counted_and_named(tmp_path: Path) -> None:
    broken = [b" -------------- celery@w1 v5.7.0", b'{"event": "acq', b"[1]", b'{"event": 7}', b"\xff\xfe", b"[" * 5000]
    start, end = call("a", 0, 1)
    verdict = judge(tmp_path, [start, *broken, b"", b'{"event": "log", "message": "ready"}', end])
    assert verdict.proved
    assert verdict.reading.broken.count == len(broken)
    assert f"{tmp_path}/w0.log:2 is no event" in str(verdict)
    assert "not readable, so not proved: 6 line(s)" in str(verdict)


def test_an_endless_line_is_skipped(tmp_path: Path) -> None:
    endless = b'{"event": "acquired", "x": "' + b"x" * (3 * MAX_LINE_BYTES) + b'"}'
    verdict = judge(tmp_path, [*call("a", 0, 1), endless, *call("b", 2, 3)])
    assert verdict.proved
    assert (verdict.reading.lines, verdict.reading.broken.first) == (5, [f"{tmp_path}/w0.log:3 is no event"])


@pytest.mark.parametrize("damage", [lambda raw: raw[:-30], lambda raw: raw[:60] + b"\0" * 40 + raw[100:]])
def test_a_damaged_archive_is_read_as_far_as_it_goes(tmp_path: Path, damage: Any) -> None:
    rng = random.Random(1)
    path = write(tmp_path / "w.log.gz", [line for i in range(2000) for line in call(str(rng.random()), i, i)])
    path.write_bytes(damage(path.read_bytes()))
    verdict = replayed([path], 1)
    assert "the archive is damaged from here on" in verdict.reading.broken.first[0]


def test_many_violations_are_counted_and_the_first_shown(tmp_path: Path) -> None:
    verdict = judge(tmp_path, [event("released") for _ in range(500)])
    assert verdict.books.violations.count == 500
    assert len(verdict.books.violations.first) == replay.MAX_NAMED


def test_what_stands_in_the_log_cannot_forge_the_verdict(tmp_path: Path) -> None:
    lines = [event("acquired", 0, lease="a\nHOLDS: all is well\x1b[2J"), *call("b", 1, 2)]
    text = str(judge(tmp_path, lines))
    assert "\x1b" not in text
    assert not any(line.startswith("HOLDS") for line in text.splitlines())


def test_our_own_events_can_be_replayed(tmp_path: Path) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logs.JsonFormatter(node="w1"))
    logger = logging.getLogger("dicast")
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        unit = {"agent": "strict", "dimension": "clear", "job": "j", "unit": "0.1.2"}
        logs.queueing(queue_depth=1, **unit)
        logs.acquired(active_slots=1, lease="w1/1", **unit)
        logs.retrying(attempt=1, status_code=429, delay_s=1.0, **unit)
        logs.released(active_slots=0, lease="w1/1", **unit)
        logs.acquired(active_slots=1, lease="w1/2", **unit)
        logs.judged(score=3, **unit)
        logs.released(active_slots=0, lease="w1/2", **unit)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    path = tmp_path / "w.log"
    path.write_text(stream.getvalue())
    verdict = replayed([path], 1)
    assert verdict.proved
    assert (verdict.books.calls, verdict.books.rate_limited) == (2, 1)


# ------------------------------------------------------------------------------------------------- random histories
def history(rng: random.Random, limit: int, nodes: int, units: int) -> list[list[Line]]:
    """A run that keeps all promises, told by the log of each node; lines carry unique times in order."""
    logs_of: list[list[Line]] = [[] for _ in range(nodes)]
    waiting = [(f"u{i}", 0) for i in range(units)]
    open_calls: list[tuple[float, int, str, str, int]] = []
    now, lease = 0.0, 0

    def tell(node: int, name: str, **fields: object) -> None:
        nonlocal now
        now += rng.choice([0.001, 0.001, 0.05])
        logs_of[node].append(event(name, now, node=f"w{node}", **fields))

    while waiting or open_calls:
        if waiting and len(open_calls) < limit and (not open_calls or rng.random() < 0.7):
            unit, attempt = waiting.pop(rng.randrange(len(waiting)))
            node, lease = rng.randrange(nodes), lease + 1
            tell(node, "acquired", lease=f"w{node}/{lease}", active_slots=len(open_calls) + 1, job="j", unit=unit)
            heapq.heappush(open_calls, (now + rng.random() * 3, node, f"w{node}/{lease}", unit, attempt))
        else:
            end, node, lease_id, unit, attempt = heapq.heappop(open_calls)
            now = max(now, end)
            if attempt < 3 and rng.random() < 0.3:
                tell(node, "retry", status_code=rng.choice([429, 429, 503, None]), job="j", unit=unit)
                waiting.append((unit, attempt + 1))
            else:
                tell(node, rng.choice(["judged", "judged", "failed"]), job="j", unit=unit)
            tell(node, "released", lease=lease_id, job="j", unit=unit)
    return logs_of


shapes = {
    "seed": st.integers(0, 2**32),
    "limit": st.integers(1, 6),
    "nodes": st.integers(1, 4),
    "units": st.integers(1, 25),
}
plants = ["extra call", "lost release", "second release", "second grant", "lost outcome"]


def peak_of(files: list[list[Line]]) -> int:
    open_calls = peak = 0
    for line in sorted((line for lines in files for line in lines), key=lambda line: line["ts"]):
        open_calls += {"acquired": 1, "released": -1}.get(line["event"], 0)
        peak = max(peak, open_calls)
    return peak


@settings(max_examples=60, deadline=None)
@given(**shapes)
def test_an_honest_history_is_proved(
    tmp_path_factory: pytest.TempPathFactory, seed: int, limit: int, nodes: int, units: int
) -> None:
    files = history(random.Random(seed), limit, nodes, units)
    verdict = judge(tmp_path_factory.mktemp("logs"), *files, limit=limit)
    assert verdict.proved, str(verdict)
    assert verdict.books.peak == peak_of(files) <= limit


def index_of(files: list[list[Line]], rng: random.Random, *names: str) -> tuple[int, int] | None:
    places = [(f, i) for f, lines in enumerate(files) for i, line in enumerate(lines) if line["event"] in names]
    return rng.choice(places) if places else None


@settings(max_examples=120, deadline=None)
@given(plant=st.sampled_from(plants), **shapes)
def test_a_planted_violation_is_found(
    tmp_path_factory: pytest.TempPathFactory, plant: str, seed: int, limit: int, nodes: int, units: int
) -> None:
    rng = random.Random(seed)
    files = history(rng, limit, nodes, units)
    if plant == "extra call":
        # As many as the limit, all while a call of the history is open.
        f, i = index_of(files, rng, "acquired")
        start = files[f][i]["ts"]
        extra = [event("acquired", lease=f"extra/{n}", ts=start) for n in range(limit)]
        lease = files[f][i]["lease"]
        end = next(line["ts"] for line in files[f] if line["event"] == "released" and line["lease"] == lease)
        files.append([*extra, *(event("released", lease=f"extra/{n}", ts=end) for n in range(limit))])
        want = f"{limit + 1} calls open"
    elif plant == "lost release":
        f, i = index_of(files, rng, "released")
        want = f"lease {files[f].pop(i)['lease']} was never released"
    elif plant == "second release":
        f, i = index_of(files, rng, "released")
        files[f].append({**files[f][i], "ts": at(9_000)})
        want = f"{files[f][i]['lease']} was released but not acquired, or twice"
    elif plant == "second grant":
        f, i = index_of(files, rng, "acquired")
        files[f].insert(i + 1, dict(files[f][i]))
        want = f"lease {files[f][i]['lease']} was acquired again"
    else:
        place = index_of(files, rng, "retry")
        if place is None:
            return
        unit = files[place[0]][place[1]]["unit"]
        files = [[x for x in lines if x["event"] not in {"judged", "failed"} or x["unit"] != unit] for lines in files]
        want = f"of unit j {unit} has no outcome"
    verdict = judge(tmp_path_factory.mktemp("logs"), *files, limit=limit)
    assert not verdict.proved
    assert any(want in note for note in verdict.books.violations.first), str(verdict)


# ------------------------------------------------------------------------------------------------------ as a program
@pytest.mark.parametrize(
    "lines, status, text",
    [
        (call("a", 0, 1), 0, "HOLDS"),
        (call("a", 0, 1)[:1], 1, "VIOLATED: 1 time(s)"),
        ([event("queueing", 0)], 2, "NOTHING PROVED"),
        ([], 2, "NOTHING PROVED"),
    ],
)
def test_exit_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: list[Line], status: int, text: str
) -> None:
    assert main([str(write(tmp_path / "w.log", lines)), "--limit", "1"]) == status
    assert text in capsys.readouterr().out


def test_a_missing_file_is_an_error_of_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none.log"), "--limit", "1"]) == 2
    assert "none.log" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--limit", "0"], ["--limit", "x"], [], ["--limit", "1", "--skew-s", "-1"]])
def test_wrong_arguments_are_refused(tmp_path: Path, arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([str(write(tmp_path / "w.log", [])), *arguments])


def test_it_runs_as_a_module(tmp_path: Path) -> None:
    path = write(tmp_path / "w.log", call("a", 0, 1))
    done = subprocess.run(
        [sys.executable, "-m", "lab.replay", str(path), "--limit", "1"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("1 file(s), 2 lines, 2 events, 1 calls, 0 retries (0 after 429)\nHOLDS")


def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    path = write(tmp_path / "long.log", (line for i in range(20_000) for line in call(f"l{i}", i, i + 0.5)))
    tracemalloc.start()
    try:
        assert replayed([path], 1).proved
        assert tracemalloc.get_traced_memory()[1] < path.stat().st_size / 5
    finally:
        tracemalloc.stop()
