"""Planted bugs, and which test catches each.

    python -m lab.chaos.mutants [--only name,name] [--table docs/mutants.md]

Each is planted in a copy of the tree, where the fast tests run until one fails. A bug that none catches asks for one.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
COPIED = ("app", "workers", "config", "dicast", "lab", "tests", "pyproject.toml")
FAST_TESTS = (
    "tests/statistics/test_means.py", "tests/providers/test_redirects.py", "tests/workers/policy/test_rate.py",
    "tests/ledger", "tests/workers/test_leases.py", "tests/workers/test_nodes.py", "tests/workers/test_reaper.py",
    "tests/workers/test_bootsteps.py", "tests/workers/test_fetch.py", "tests/test_tasks.py", "tests/test_messages.py",
    "tests/test_spool.py", "tests/judge", "tests/workers/test_dead_letters.py", "tests/chaos/test_virtual.py",
)  # fmt: skip
DEADLINE_S = 240


class Mutant(NamedTuple):
    """`old` stands once in the file."""

    name: str
    file: str
    old: str
    new: str


MUTANTS = (
    Mutant(
        "what open calls have reserved does not count against a cap",
        "app/ledger/caps.lua",
        "{'max_cost', 'reserved_cost', ",
        "{'max_cost', ",
    ),
    Mutant(
        "a dead worker's reservation flows back",
        "app/ledger/caps.lua",
        "redis.call('HINCRBY', job, 'unheard_' .. measure, string.format('%d', sizes[measure]))",
        "",
    ),
    Mutant(
        "what open calls have reserved does not count against a budget",
        "app/ledger/purses.lua",
        "if spent + unknown + purse.reserved + needed > most then",
        "if spent + unknown + needed > most then",
    ),
    Mutant(
        "a dead worker's reservation flows back into a budget",
        "app/ledger/caps.lua",
        "changes[#changes + 1], changes[#changes + 2] = {name, day, 'reserved', -cost}, {name, day, 'unknown', cost}",
        "changes[#changes + 1] = {name, day, 'reserved', -cost}",
    ),
    Mutant(
        "a call of unknown cost has cost nothing",
        "app/pipeline/call_facts.py",
        'counters["unknown"] = counters[f"{book}unknown"] = most.cost(place.highest_by(call.road))',
        "pass",
    ),
    Mutant(
        "a later result overwrites the first",
        "app/ledger/record.lua",
        "  elseif result then\n",
        "  elseif false then\n",
    ),
    Mutant(
        "a result is written whatever its fence",
        "app/ledger/record.lua",
        "elseif is_held(page, u, fence, epoch) then",
        "elseif true then",
    ),
    Mutant("a result counts down twice", "app/ledger/record.lua", "page.left - new\n", "page.left - 2 * new\n"),
    Mutant(
        "results do not empty the lane's window",
        "app/ledger/record.lua",
        "new - scored, stale, -new",
        "new - scored, stale, 0",
    ),
    Mutant(
        "the last result of an unchorded page gathers nothing",
        "app/ledger/record.lua",
        "then reply[3] = 1 end",
        "then reply[3] = 0 end",
    ),
    Mutant(
        "a claim ignores the owner",
        "app/ledger/claim.lua",
        "if u.owner ~= node and in_living_hands(u, beacons, now, claim_ms) then",
        "if false then",
    ),
    Mutant(
        "a claim's fence does not grow",
        "app/ledger/claim.lua",
        "local fence = math.max(u.fence, epoch) + 1",
        "local fence = math.max(u.fence, epoch)",
    ),
    Mutant(
        "nothing is ever quarantined",
        "app/ledger/claim.lua",
        "elseif u.deaths >= deaths_max then",
        "elseif false then",
    ),
    Mutant(
        "a cancelled job goes on calling",
        "app/ledger/claim.lua",
        "if state ~= 'running' then verdict = 'cancelled'",
        "if false then verdict = 'cancelled'",
    ),
    Mutant("a unit runs before its wait is over", "app/ledger/claim.lua", "elseif waiting then", "elseif false then"),
    Mutant(
        "a paid call before a death is not told",
        "app/ledger/claim.lua",
        "if twice then",
        "if false then",
    ),
    Mutant(
        "a unit is deferred whatever the fence",
        "app/ledger/defer.lua",
        "elseif is_held(page, u, fence, epoch) then",
        "elseif true then",
    ),
    Mutant(
        "a deferred unit keeps its owner",
        "app/ledger/defer.lua",
        "math.max(0, u.calls - unpaid), ''",
        "math.max(0, u.calls - unpaid), u.owner",
    ),
    Mutant(
        "a due message is forgotten when it is taken",
        "app/ledger/take_due.lua",
        "redis.call('ZADD', due, now + tonumber(again_ms), member)",
        "redis.call('ZREM', due, member)",
    ),
    Mutant(
        "a page is gathered while units are open",
        "app/ledger/take_page.lua",
        "if tonumber(left) > 0 then",
        "if false then",
    ),
    Mutant(
        "a job ends with its first page",
        "app/ledger/close_page.lua",
        "redis.call('SCARD', pages) == 0 and 1 or 0",
        "1",
    ),
    Mutant(
        "a page whose results the store has lost is closed",
        "app/ledger/close_page.lua",
        "'left') or 0) > 0",
        "'left') or 0) < 0",
    ),
    Mutant(
        "a job ends before all is planned",
        "app/ledger/close_page.lua",
        "~= '' then finish = 0 end",
        "~= '' then finish = finish end",
    ),
    Mutant(
        "a job completes twice",
        "app/ledger/complete.lua",
        "if state ~= 'finishing' then return 0 end",
        "",
    ),
    Mutant(
        "a job ends with the report of an earlier one of its id",
        "app/ledger/complete.lua",
        "if incarnation ~= reported then return 0 end",
        "",
    ),
    Mutant(
        "a planner of an earlier job opens a page of the present one",
        "app/ledger/open_page.lua",
        " or present ~= incarnation or answerer then",
        " or answerer then",
    ),
    Mutant(
        "pages of an earlier job of an id stay when its record is lost",
        "app/ledger/submit.lua",
        "redis.call('ZREM', watch",
        "redis.call('ZSCORE', watch",
    ),
    Mutant(
        "a finished job's items stay in the store",
        "app/ledger/complete.lua",
        "redis.call('EXPIRE', items, keep_s) else redis.call('DEL', items) end",
        "redis.call('EXPIRE', items, keep_s) end",
    ),
    Mutant(
        "a job that cannot be finished cannot be cancelled",
        "app/ledger/cancel.lua",
        "local given_up = state == 'finishing' and stuck",
        "local given_up = false",
    ),
    Mutant(
        "only the worker that failed to finish a job tries again",
        "app/ledger/finish_failed.lua",
        "if finisher == node then redis.call('HDEL', job, 'finisher') end",
        "",
    ),
    Mutant(
        "a look at a question is at the scores that grow",
        "app/pipeline/question.py",
        "return self.scores[:]",
        "return self.scores",
    ),
    Mutant(
        "a completion is announced only by who made it",
        "app/ledger/complete.lua",
        "redis.call('SADD', outbox, job_id)",
        "",
    ),
    Mutant(
        "another job under the same id is taken for the same",
        "app/ledger/submit.lua",
        "known == digest and 'same' or 'other'",
        "'same'",
    ),
    Mutant(
        "a job that is not started is not looked after",
        "app/ledger/submit.lua",
        "redis.call('ZADD', unfinished, now + tonumber(grace_ms), job_id)",
        "",
    ),
    Mutant(
        "a cancelled job is still granted leases", "app/ledger/cancel.lua", "redis.call('HDEL', job_limits, job_id)", ""
    ),
    Mutant(
        "a job's limit is not frozen",
        "app/ledger/start.lua",
        "if state ~= 'submitted' or ",
        "if ",
    ),
    Mutant(
        "two planners open the same page",
        "app/ledger/open_page.lua",
        "if (next_number or '0') ~= number then return -1 end",
        "",
    ),
    Mutant(
        "the units of the dead are not found",
        "app/ledger/find_lost.lua",
        "return not in_living_hands(u, beacons, now, claim_ms), false",
        "return false, false",
    ),
    Mutant(
        "a lost message is not found",
        "app/ledger/find_lost.lua",
        "if not u then return nothing_waits, true end",
        "if not u then return false, true end",
    ),
    Mutant("a claim never ends while its node lives", "app/ledger/unit.lua", "now - u.at < claim_ms or", "true or"),
    Mutant(
        "all pools together may have one call more",
        "workers/admission/slots.lua",
        "return slots.all >= slots.cap or (",
        "return slots.all > slots.cap or (",
    ),
    Mutant(
        "a pool may have one call more",
        "workers/admission/enforce.lua",
        "if open >= limit then",
        "if open > limit then",
    ),
    Mutant(
        "leases never run out", "workers/admission/release.lua", "'-inf', now_ms, 'LIMIT'", "'-inf', '-inf', 'LIMIT'"
    ),
    Mutant(
        "a lease given back twice counts twice",
        "workers/admission/release.lua",
        "  change_many('HDEL', books.holders, over)\n",
        "",
    ),
    Mutant(
        "the leases of the living are buried with the dead",
        "workers/nodes/deregister.lua",
        "elseif holder.node == node then",
        "elseif holder.node ~= '' then",
    ),
    Mutant(
        "the lease clock follows every jump", "workers/store/clock.lua", "math.max(0, math.min(5000, step))", "step"
    ),
    Mutant(
        "silence is taken for death",
        "workers/nodes/reaper.py",
        "dead = node.proven_dead()",
        "dead = not heard or node.proven_dead()",
    ),
    Mutant("messages come back while the dead seem alive", "workers/nodes/reaper.py", "registry.silence(node)", "pass"),
    Mutant(
        "leases of an unknown grant are kept",
        "workers/admission/gate.py",
        "[*returned, *(w.lease for w in wants), *self._give_back]",
        "[*returned, *self._give_back]",
    ),
    Mutant(
        "a batch of returned leases is lost with its answer",
        "workers/admission/gate.py",
        "self._give_back = [*returned, *(w.lease for w in wants), *self._give_back]",
        "self._give_back = [*(w.lease for w in wants), *self._give_back]",
    ),
    Mutant(
        "a rate limit spends an attempt",
        "app/pipeline/outcomes.py",
        'spent=int(decision.spends == "attempt")',
        "spent=1",
    ),
    Mutant(
        "a probe of a pool that is down spends an attempt",
        "app/pipeline/outcomes.py",
        "pool_down=attribution.pool_down,",
        "pool_down=False,",
    ),
    Mutant(
        "a unit's deadline is not looked at",
        "app/ledger/claim.lua",
        "elseif left_ms == 0 then",
        "elseif false then",
    ),
    Mutant(
        "a job gives up on a pool that nobody has tried since",
        "app/pipeline/time_limits.py",
        "or outage.at < began_s",
        "or False",
    ),
    Mutant(
        "two copies of a message call at once",
        "app/pipeline/judge.py",
        "return (ref, position) in self._working",
        "return False",
    ),
    Mutant(
        "the ledger forgets a page before its file is written",
        "app/pipeline/gather.py",
        "            await asyncio.to_thread(self._write, ref, page)\n",
        "            pass\n",
    ),
    Mutant(
        "messages are acknowledged before the work",
        "app/tasks.py",
        '    Request = "dicast.app.operator.requests:UnitRequest"\n    acks_late = True',
        '    Request = "dicast.app.operator.requests:UnitRequest"\n    acks_late = False',
    ),
    Mutant("a worker leaves before its pool", "workers/nodes/beacon.py", "insert(0, self)", "append(self)"),
    Mutant(
        "a node that is not heard may claim",
        "app/ledger/claim.lua",
        "if redis.call('EXISTS', beacons .. node) == 0 then",
        "if false then",
    ),
    Mutant(
        "what the store has lost is nobody's to give up",
        "app/ledger/release_claims.lua",
        "u.fence == fence then",
        "false then",
    ),
    Mutant(
        "an attempt to open a page is not known again",
        "app/ledger/open_page.lua",
        "if redis.call('HGET', page, 'attempt') == attempt then",
        "if false then",
    ),
    Mutant(
        "control work is given up while the store is away",
        "app/pipeline/record.py",
        "if not is_passing(error):",
        "if True:",
    ),
    Mutant(
        "a page whose batch met a broker that went away is given up",
        "app/pipeline/messages.py",
        "(OperationalError, BatchPublishError, ",
        "(OperationalError, ",
    ),
    Mutant(
        "a message that was popped and not noted is forgotten",
        "workers/broker/fetch.py",
        "while in_hand:",
        "while False:",
    ),
    Mutant(
        "a claim that is asked again is another one",
        "app/ledger/claim.lua",
        "local before = claim_of(u, 'attempt', attempt)",
        "local before = nil",
    ),
    Mutant(
        "a fail-over is a death of its unit's owner",
        "app/ledger/claim.lua",
        "if others and u.owner ~= NOBODY then",
        "if others then",
    ),
    Mutant(
        "a result that is told again counts again",
        "app/ledger/record.lua",
        "news and counters or {}",
        "counters",
    ),
    Mutant(
        "a late answer's cost is forgotten",
        "app/ledger/record.lua",
        "news = verdict == 'again' and was_late(page_key, 'late', position, fence) or news",
        "news = news",
    ),
    Mutant(
        "a deferral that is told again counts again",
        "app/ledger/defer.lua",
        "if deferred + stale > 0 then",
        "if true then",
    ),
    Mutant(
        "what may come late is forgotten with its page",
        "app/ledger/close_page.lua",
        "if late then",
        "if false then",
    ),
    Mutant(
        "what was taken and not answered waits for a minute",
        "app/ledger/take_due.lua",
        "if newest == tonumber(attempt) then",
        "if false then",
    ),
    Mutant(
        "due messages are taken for nobody",
        "app/ledger/take_due.lua",
        "if newest and newest >= tonumber(attempt) then return taken end",
        "",
    ),
    Mutant(
        "a look that is repeated is a second look",
        "app/ledger/find_lost.lua",
        "if attempt_then == attempt then return tonumber(found_then) end",
        "",
    ),
    Mutant(
        "who was told to plan is never replaced",
        "app/ledger/planning.lua",
        "if holder and redis.call('EXISTS', beacons .. holder) == 1 then",
        "if holder then",
    ),
    Mutant(
        "the waiters of a lost job are told only by who recorded it",
        "app/ledger/mark_lost.lua",
        "redis.call('SADD', outbox, job_id)",
        "",
    ),
    Mutant(
        "an ended job goes back to be finished",
        "app/ledger/ripe.lua",
        "state == 'cancelling' and redis.call('SCARD', pages) == 0",
        "redis.call('SCARD', pages) == 0",
    ),
    Mutant(
        "a submission that is repeated finds its own job there",
        "app/ledger/submit.lua",
        "if submitter == attempt then return 'new' end",
        "",
    ),
    Mutant(
        "a job is there without its items",
        "app/ledger/submit.lua",
        "if redis.call('HLEN', staged) ~= tonumber(staged_count) then",
        "if false then",
    ),
    Mutant(
        "a message that is set aside twice counts twice",
        "workers/broker/dead_letter.lua",
        "if redis.call('LPOS', set_aside, entry) then",
        "if false then",
    ),
    Mutant(
        "a spool has two heirs",
        "app/pipeline/record.py",
        "        yield True\n",
        "        fcntl.flock(lock, fcntl.LOCK_UN)\n        yield True\n",
    ),
    Mutant("a unit that waits counts for its chord", "app/tasks.py", "        self.request.chord = None\n", ""),
    Mutant(
        "an uncertainty rests on one answer",
        "app/domain/escalation.py",
        "standard_error(list(scores.values()))",
        "standard_error(list(scores.values())[:1] * 2)",
    ),
    Mutant(
        "who was not needed is taken for uncertain",
        "app/domain/escalation.py",
        "if not scoreboard.is_skipped(unit.item, number, unit.dimension):",
        "if True:",
    ),
    Mutant(
        "errors of independent values are summed",
        "app/analysis/means.py",
        "float(np.hypot(self.error, other.error))",
        "self.error + other.error",
    ),
    Mutant("a direct call follows redirects", "app/providers/http.py", "allow_redirects=False", "allow_redirects=True"),
    Mutant(
        "an SDK's call follows redirects", "app/providers/http.py", "follow_redirects=False", "follow_redirects=True"
    ),
    Mutant(
        "a question's item that takes long is passed over",
        "app/pipeline/question.py",
        "        if not board.has_ended(item, agents):\n            break\n",
        "        if not board.has_ended(item, agents):\n            continue\n",
    ),
    Mutant("a resumed job expires", "app/ledger/resume.lua", "redis.call('PERSIST', job)\n", ""),
    Mutant(
        "a batch that is due is lost",
        "app/ledger/find_lost.lua",
        "due_prefix .. 'b' .. (position - position % stride)) == false",
        "due_prefix .. position) == false",
    ),
    Mutant(
        "an untouched batch is sent again unit by unit",
        "app/ledger/find_lost.lua",
        "then found = {'b' .. group} end",
        "then found = found end",
    ),
    Mutant(
        "what was written of late is forgotten, and what is old is told again",
        "app/pipeline/record.py",
        "self._stored[0].at < now - REMEMBERED_S",
        "self._stored[0].at > now - REMEMBERED_S",
    ),
    Mutant(
        "a unit whose workers died is not counted as lost",
        "app/pipeline/outcomes.py",
        "REQUESTED_ENDS = frozenset({ClaimVerdict.CANCELLED,",
        "REQUESTED_ENDS = frozenset({ClaimVerdict.POISON, ClaimVerdict.CANCELLED,",
    ),
    Mutant(
        "a learned rate is used without its margin",
        "workers/policy/rate.py",
        "measured * (1.0 - margin)",
        "measured",
    ),
    Mutant(
        "every call is of its lane's first pool",
        "app/pipeline/judge.py",
        "pool=lane.pools[work.deployment]",
        "pool=lane.pools[0]",
    ),
)


def caught_by(mutant: Mutant) -> str:
    """The first test that fails, or ''."""
    with tempfile.TemporaryDirectory(prefix="dicast-mutant-") as name:
        folder = Path(name)
        for part in COPIED:
            source = ROOT / part
            if source.is_dir():
                shutil.copytree(source, folder / part, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, folder / part)
        path = folder / mutant.file
        text = path.read_text()
        assert text.count(mutant.old) == 1, f"{mutant.name}: {mutant.file} has moved on"
        path.write_text(text.replace(mutant.old, mutant.new))
        command = [sys.executable, "-B", "-m", "pytest", "-x", "-q", "--tb=line", "-p", "no:cacheprovider", *FAST_TESTS]
        try:
            run = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return "the tests do not end"
        failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", run.stdout, re.MULTILINE)
        assert run.returncode in (0, 1), run.stdout[-2000:]
        return failed[0] if failed else ""


def main() -> int:
    """Exit status 1 if a mutant lives."""
    parser = argparse.ArgumentParser("python -m lab.chaos.mutants", description=__doc__)
    parser.add_argument("--only", help="a part of the names")
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--table", type=Path)
    wish = parser.parse_args()
    chosen = [m for m in MUTANTS if not wish.only or any(part in m.name for part in wish.only.split(","))]
    began = time.monotonic()
    lines = ["| planted bug | file | caught by |", "|---|---|---|"]
    living = 0
    with ThreadPoolExecutor(wish.parallel) as pool:
        for mutant, test in zip(chosen, pool.map(caught_by, chosen), strict=True):
            living += not test
            shown = test.removeprefix("tests/") or "**nothing**"
            lines.append(f"| {mutant.name} | `{mutant.file}` | {shown} |")
            print(lines[-1], flush=True)
    print(f"{len(chosen) - living} of {len(chosen)} caught, {time.monotonic() - began:.0f} s")
    if wish.table:
        wish.table.write_text("\n".join(lines) + "\n")
    return 1 if living else 0


if __name__ == "__main__":
    sys.exit(main())
