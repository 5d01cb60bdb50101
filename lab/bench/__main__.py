"""Measures Dicast, alone and beside the peers that are installed, and writes what came of it.

    python -m lab.bench [--only steady-900,cut] [--with dicast,inspect] [--runs 3] [--add] [--docs] [--broker amqp://...]

Contenders take turns, so that a machine that grows busy meanwhile is unfair to nobody. Raw results are kept in
.bench/runs.json; a case that is measured again replaces what was there for the same contender, unless --add.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lab.bench import layers
from lab.bench.cases import CASES, Measured
from lab.bench.contenders import ALL, ROOT
from lab.bench.pages import ABOUT, FOOT, GOALS, HEAD, commit, machine, sections
from lab.bench.pipeline import Machine
from lab.bench.report import markdown
from lab.bench.single import SINGLE

RAW = ROOT / ".bench" / "runs.json"
DOCS = ROOT / "docs"
PUBLISHED = DOCS / "benchmarks.json"


def main() -> None:
    given = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds, and so stops what was started
    Machine.broker = given.broker
    names = _named(given.only) if given.only else [*SINGLE, *CASES]
    who = given.who.split(",") if given.who else list(ALL)
    where, kept = _read()
    if given.runs and not kept:
        where = machine()
    if not given.add and given.runs:
        measured = {(name, contender) for name in names for contender in (who if name in CASES else ["dicast"])}
        kept = [run for run in kept if (run["case"], run["contender"]) not in measured]
    for run in _runs(names, who, given.runs, len(kept)):
        kept.append(run)
        RAW.parent.mkdir(exist_ok=True)
        _write(RAW, where, kept)
        _tell(run)
    if not kept:
        sys.exit("nothing has been measured")
    if given.docs:
        _write_docs(where, kept)
    else:
        print(page(where, kept))


def page(where: str, runs: Sequence[Mapping[str, Any]]) -> str:
    """The page of these runs on that machine."""
    return markdown(runs, sections(), GOALS, head=HEAD, machine=where, about=ABOUT, foot=FOOT, ours="dicast")


def _arguments() -> argparse.Namespace:
    doc = (__doc__ or "").splitlines()[0]
    parse = argparse.ArgumentParser(prog="python -m lab.bench", description=doc)
    parse.add_argument("--only", help=f"cases, or the first word of several: {','.join([*SINGLE, *CASES])}")
    parse.add_argument("--with", dest="who", help=f"contenders, of {','.join(ALL)}")
    parse.add_argument("--runs", type=int, default=3, help="of each; 0: only write what was measured before")
    parse.add_argument("--add", action="store_true", help="keep earlier runs of the same case and contender")
    parse.add_argument("--docs", action="store_true", help="write docs/benchmarks.md, its pictures and its raw figures")
    parse.add_argument("--broker", default="", help="a RabbitMQ that runs already, for Dicast's own cases: amqp://...")
    given = parse.parse_args()
    unknown = {name for name in (given.only or "").split(",") if name and not _named(name)}
    unknown |= set((given.who or "").split(",")) - {"", *ALL}
    if unknown:
        parse.error(f"unknown: {', '.join(sorted(unknown))}")
    return given


def _named(override: str) -> list[str]:
    """The cases of a list of names; `headers` alone stands for all that begin with it."""
    known = [*SINGLE, *CASES]
    return [
        case
        for name in override.split(",")
        for case in ([name] if name in known else [case for case in known if case.startswith(f"{name}-")])
    ]


def _runs(names: Sequence[str], who: Sequence[str], count: int, seed: int) -> Iterator[dict[str, Any]]:
    """All runs, contender by contender in turn; `seed` differs from call to call, so that added runs are new ones."""
    for number in range(seed, seed + count):
        for name in names:
            if name in SINGLE:
                yield _record(name, "dicast", Measured(SINGLE[name]()))
                continue
            for contender in (ALL[one] for one in CASES[name].who if one in who):
                if contender.installed():
                    yield _record(name, contender.name, CASES[name].measure(contender, number))


def _record(case: str, contender: str, measured: Measured) -> dict[str, Any]:
    return {
        "case": case,
        "contender": contender,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "load": round(os.getloadavg()[0], 2),
        "commit": commit(),
        "figures": {name: round(float(value), 4) for name, value in measured.figures.items()},
        "versions": dict(measured.versions),
        "curve": measured.curve,
    }


def _tell(run: Mapping[str, Any]) -> None:
    figures = ", ".join(f"{name} {value:.4g}" for name, value in run["figures"].items())
    print(f"{run['case']} {run['contender']}: {figures}", file=sys.stderr, flush=True)


def _read() -> tuple[str, list[dict[str, Any]]]:
    """The machine and the runs that were kept here."""
    if not RAW.exists():
        return machine(), []
    found = json.loads(RAW.read_text())
    return found["machine"], found["runs"]


def _write(path: Path, where: str, runs: Sequence[Mapping[str, Any]]) -> None:
    lines = ",\n".join(json.dumps(run) for run in runs)
    path.write_text(f'{{"machine": {json.dumps(where)}, "runs": [\n{lines}\n]}}\n')


def _write_docs(where: str, runs: Sequence[Mapping[str, Any]]) -> None:
    from lab.bench.plots import draw  # noqa: PLC0415  matplotlib is wanted only here

    _write(PUBLISHED, where, runs)
    (DOCS / "benchmarks.md").write_text(page(where, runs))
    for section in sections():
        draw(runs, section, DOCS)
    if (flames := layers.KEPT / layers.PICTURE).exists():
        shutil.copy(flames, DOCS)


if __name__ == "__main__":
    main()
