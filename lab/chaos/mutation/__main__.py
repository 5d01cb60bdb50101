"""`python -m lab.chaos.mutation`: mutate the code that the promises rest on, and see whether the tests notice.

    python -m lab.chaos.mutation python                         # mutmut over the modules that pyproject.toml names
    python -m lab.chaos.mutation python --only 'dicast.app.domain.*'
    python -m lab.chaos.mutation scripts --sample 300 --seed 1  # the store's scripts
    python -m lab.chaos.mutation scripts --only claim,record
    python -m lab.chaos.mutation rooms --sample 400 --seed 26     # server, reports, statistics and others, as text
    python -m lab.chaos.mutation rooms --sample 400 --seed 26 --slice 100:200

Ends with 1 if fewer than 95 % of the mutations are noticed, those accepted with a reason (accepted.toml) left out.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from lab.chaos.mutation import lua, python, rooms, scripts
from lab.chaos.mutation.accepted import AcceptedChange, accepted

GOAL = 0.95


def main() -> int:
    parser = argparse.ArgumentParser("python -m lab.chaos.mutation", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("what", choices=("python", "scripts", "rooms"))
    parser.add_argument("--only", default="", help="names, separated by commas; of Python also patterns")
    parser.add_argument("--sample", type=int, default=0, help="so many, drawn at random; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--results", action="store_true", help="of Python: only show what was found before")
    parser.add_argument("--slice", default="", help="of rooms: only these of the sample, as first:last")
    parser.add_argument("--record", action="store_true", help="of rooms: find out anew which tests run what")
    wish = parser.parse_args()
    only = [name for name in wish.only.split(",") if name]
    if wish.what == "rooms":
        return _report(_rooms(wish, only), _room)
    return _report(_scripts(wish, only) if wish.what == "scripts" else _python(wish, only))


def _rooms(wish: argparse.Namespace, only: list[str]) -> list[tuple[AcceptedChange, bool]]:
    rooms.record(anew=wish.record)
    first, _, last = wish.slice.partition(":")
    found = rooms.sample(wish.sample, wish.seed, only)[int(first or 0) : int(last) if last else None]
    results, endless = [], 0

    def told(change: rooms.Change, test: str) -> None:
        nonlocal endless
        known = AcceptedChange(str(change.file.relative_to(rooms.ROOT)), *change.lines())
        results.append((known, bool(test)))
        endless += test.endswith(rooms.HANGS)
        shown = f"{known.file}:{change.line}  {known.after}"
        print(f"{len(results):4}  {test or 'SURVIVED'}  {shown if test else known}", flush=True)

    rooms.run(found, told)
    print(f"{endless} were noticed by a test that does not end with them, and does without them")
    return results


def _room(file: str) -> str:
    return "/".join(file.split("/")[:2])


def _python(wish: argparse.Namespace, only: list[str]) -> Iterator[tuple[AcceptedChange, bool]]:
    if not wish.results:
        only = python.run(only, wish.parallel, wish.sample, wish.seed)
    for name, path, noticed in python.results(only):
        yield (AcceptedChange(str(path), "", "") if noticed else python.change(name, path)), noticed


def _scripts(wish: argparse.Namespace, only: list[str]) -> list[tuple[AcceptedChange, bool]]:
    files = sorted(file for folder in scripts.TESTS for file in folder.rglob("*.lua"))
    found = [m for file in files if not only or file.stem in only for m in lua.mutations(file)]
    if wish.sample:
        found = random.Random(wish.seed).sample(found, min(wish.sample, len(found)))
    print(f"{len(found)} mutations")
    results = []

    def told(mutation: lua.Mutation, noticed: bool) -> None:
        file = str(mutation.script.relative_to(scripts.ROOT))
        results.append((AcceptedChange(file, mutation.before.strip(), mutation.after.strip()), noticed))
        if not noticed:
            print(f"survived: {file}:{mutation.number + 1}  {mutation.after.strip()}", flush=True)

    scripts.run(found, wish.parallel, told)
    return results


def _report(found: Iterable[tuple[AcceptedChange, bool]], group: Callable[[str], str] = str) -> int:
    reasons, caught, total, survivors, excused = accepted(), defaultdict(int), defaultdict(int), [], 0
    for change, noticed in found:
        if not noticed and change in reasons:
            excused += 1
            continue
        total[group(change.file)] += 1
        caught[group(change.file)] += noticed
        if not noticed:
            survivors.append(change)
    for change in survivors:
        print(change)
    for file in sorted(total):
        print(f"{caught[file]:5} of {total[file]:5}  {100 * caught[file] / total[file]:5.1f} %  {file}")
    share = sum(caught.values()) / max(1, sum(total.values()))
    print(f"{sum(caught.values())} of {sum(total.values())} noticed, {100 * share:.1f} %; {excused} more are accepted")
    return 0 if share >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
