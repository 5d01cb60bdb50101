"""What is kept on disk survives its process, is given to one heir at a time, and a full disk stops nothing."""

import asyncio
import contextlib
import fcntl
import logging
import os
import resource
import subprocess
import sys
import threading

from dicast.app.ledger.keys import PageRef
from dicast.app.ledger.records import Recorded, WriteVerdict
from dicast.app.pipeline.record import Spool
from dicast.app.pipeline.recovery import Adoption

KEEP_AND_DIE = """
import os, sys
from dicast.app.pipeline.record import Spool
spool = Spool(sys.argv[1], "ns", "dead#1")
for n in range(3):
    assert spool.put(b"entry %d" % n)
print("kept", flush=True)
sys.stdin.readline()
os._exit(9)
"""


def contents(spool):
    with spool.orphans(100) as found:
        return [entry for _, entry in found]


def test_what_a_dead_process_kept_is_the_next_ones(tmp_path):
    keeper = subprocess.Popen(
        [sys.executable, "-c", KEEP_AND_DIE, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert keeper.stdout.readline() == "kept\n"
    heir = Spool(tmp_path, "ns", "heir#2")
    assert contents(heir) == []  # its owner lives
    keeper.communicate("\n")
    assert contents(heir) == [b"entry 0", b"entry 1", b"entry 2"]
    assert contents(Spool(tmp_path, "other", "heir#2")) == []
    with heir.orphans(100) as found:
        for path, _ in found:
            heir.drop(path)
    assert contents(heir) == []
    assert list((tmp_path / "spool" / "ns").iterdir()) == []


def test_two_heirs_are_not_given_the_same_until_the_first_has_stored_it(tmp_path):
    left, first, second = (Spool(tmp_path, "ns", name) for name in ("dead", "first", "second"))
    for n in range(3):
        left.put(b"entry %d" % n)
    os.close(left._lock)  # as its process's end does
    with first.orphans(2) as found:
        assert [entry for _, entry in found] == [b"entry 0", b"entry 1"]
        assert contents(second) == []
        for path, _ in found:
            first.drop(path)
    assert contents(second) == [b"entry 2"]


def test_what_cannot_be_read_is_kept_for_people_and_given_to_nobody(tmp_path):
    spool = Spool(tmp_path, "ns", "a")
    path = spool.put(b"not json")
    spool.abandon(path)
    spool.set_aside(path)
    assert contents(spool) == []
    assert path.with_suffix(".broken").read_bytes() == b"not json"


def test_a_process_that_stops_leaves_what_it_could_not_store(tmp_path):
    spool = Spool(tmp_path, "ns", "a")
    stored, left = spool.put(b"1"), spool.put(b"2")
    spool.drop(stored)
    assert contents(spool) == []  # a task of its own still tries to store it
    spool.abandon(left)
    assert contents(spool) == [b"2"]
    spool.close()
    assert contents(Spool(tmp_path, "ns", "b")) == [b"2"]


def test_nothing_is_made_before_it_is_needed_or_left_behind(tmp_path):
    spool = Spool(tmp_path, "ns", "a")
    spool.close()
    assert list(tmp_path.iterdir()) == []
    spool.drop(spool.put(b"1"))
    spool.close()
    assert list((tmp_path / "spool" / "ns").iterdir()) == []
    spool.drop(None)


def test_many_threads_may_be_the_first(tmp_path):
    """Each locks the folder, and none waits for another's lock on it."""
    spool, barrier, kept = Spool(tmp_path, "ns", "a"), threading.Barrier(8), []

    def keep(n):
        barrier.wait()
        kept.append(spool.put(b"%d" % n))

    threads = [threading.Thread(target=keep, args=(n,), daemon=True) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=10)
    assert sorted(path.read_bytes() for path in kept) == [b"%d" % n for n in range(8)]


def test_a_folder_taken_for_an_abandoned_one_is_made_again(tmp_path, monkeypatch):
    spool, heir, lock = Spool(tmp_path, "ns", "a"), Spool(tmp_path, "ns", "b"), fcntl.flock

    def an_heir_is_quicker(file, flags):
        monkeypatch.setattr(fcntl, "flock", lock)
        assert contents(heir) == []
        lock(file, flags)

    monkeypatch.setattr(fcntl, "flock", an_heir_is_quicker)
    assert spool.put(b"1").read_bytes() == b"1"
    assert contents(heir) == []


def test_a_bound_is_kept_and_told(tmp_path, caplog):
    spool = Spool(tmp_path, "ns", "a", max_bytes=10)
    first = spool.put(b"x" * 8)
    assert spool.put(b"x" * 8) is None
    assert spool.failed_writes == 1
    assert [r.levelno for r in caplog.records] == [logging.ERROR]
    spool.drop(first)
    assert spool.put(b"x" * 8)


@contextlib.contextmanager
def full_disk():
    """No file of this process can grow, nor the one that the tests' own output goes to: so for one call only."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_told_and_leaves_no_trace(tmp_path, caplog):
    spool = Spool(tmp_path, "ns", "a")
    with full_disk():
        kept = spool.put(b"x")
    assert kept is None
    assert "cannot be kept on disk" in caplog.text
    assert [p.name for p in (tmp_path / "spool" / "ns" / "a").iterdir()] == ["lock"]


class Adopted:
    """The ledger, where storing takes its time, and whoever is told of it."""

    def __init__(self):
        self.entries, self.accepted = [], []

    async def store_spooled(self, entry):
        self.entries.append(entry)
        for _ in range(20):
            await asyncio.sleep(0)
        return PageRef("j", "n", 0, 0), Recorded(1, plan=False, gather=False, written=[WriteVerdict.NEW])

    def adopted(self, *, accepted):
        self.accepted.append(accepted)


async def test_two_looks_at_once_adopt_an_entry_once(tmp_path):
    """The beat's tick and the worker's own look: the slower one could not read what the other had stored already."""
    spool, ledger = Spool(tmp_path, "ns", "own#1"), Adopted()
    for n in range(30):
        spool.abandon(spool.put(b"%d" % n))
    adoption = Adoption(spool, ledger, None, ledger)
    await asyncio.gather(*(adoption.adopt() for _ in range(3)))
    assert sorted(ledger.entries, key=int) == [b"%d" % n for n in range(30)]
    assert ledger.accepted == [True] * 30
    assert contents(spool) == []
