"""Faults of the store: killed, cut short, flushed, full, refusing."""

from __future__ import annotations

import signal

from lab.chaos.catalogue import fault
from lab.chaos.runs import Run


@fault(weight=8, forgetful=True)
def restart_store(run: Run) -> None:
    """kill -9, and back after 2 s with a log that is at most a second old."""
    run.await_moment()
    run.strike()
    run.place.store.kill()
    run.pause(2)
    run.place.store.start()
    run.strike()


@fault(weight=2, forgetful=True)
def truncate_store(run: Run) -> None:
    """The end of the store's log is lost, as by a power failure."""
    run.await_moment()
    run.strike()
    run.place.store.kill()
    logs = sorted((run.place.store.folder / "appendonlydir").glob("*.incr.aof"))
    with logs[-1].open("ab") as file:
        file.truncate(max(0, file.tell() - 100))
    run.place.store.start()
    run.strike()


@fault(weight=3, forgets=True, loose_log=True, deadline_s=60)
def flush_store(run: Run) -> None:
    """FLUSHALL."""
    run.await_moment()
    run.strike()
    run.place.store.client.flushall()


@fault(weight=4)
def flush_scripts(run: Run) -> None:
    """SCRIPT FLUSH, up to four times."""
    for _ in range(run.chance.randint(1, 4)):
        run.await_moment()
        run.place.store.client.script_flush()


@fault(weight=4)
def store_read_only(run: Run) -> None:
    """For 1 to 4 s the store is a replica and refuses to write."""
    run.await_moment()
    run.strike()
    run.place.store.client.replicaof("127.0.0.1", 1)
    run.pause(run.chance.uniform(1, 4))
    run.place.store.client.replicaof("NO", "ONE")
    run.strike()


@fault(weight=4)
def store_full(run: Run) -> None:
    """For 1 to 4 s the store's memory limit is 1 kB above what it uses, and nothing may be evicted."""
    run.await_moment()
    run.strike()
    client = run.place.store.client
    client.config_set("maxmemory", int(client.info("memory")["used_memory"]) + 1000)
    run.pause(run.chance.uniform(1, 4))
    client.config_set("maxmemory", 0)
    run.strike()


@fault(weight=4)
def kill_clients(run: Run) -> None:
    """The store closes all connections, up to five times."""
    for _ in range(run.chance.randint(1, 5)):
        run.await_moment()
        run.strike()
        run.place.store.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


@fault(weight=3)
def store_stalls(run: Run) -> None:
    """The store accepts connections and answers nothing for a while."""
    run.await_moment()
    run.strike()
    run.place.store.process.send_signal(signal.SIGSTOP)
    run.pause(run.chance.uniform(0.5, 5))
    run.place.store.process.send_signal(signal.SIGCONT)
    run.strike()


@fault(weight=2)
def store_out_of_connections(run: Run) -> None:
    """For 1 to 3 s the store takes five clients fewer than there are, and closes all that it has."""
    run.await_moment()
    run.strike()
    client = run.place.store.client
    before = client.config_get("maxclients")["maxclients"]
    client.config_set("maxclients", max(5, int(client.info("clients")["connected_clients"]) - 5))
    client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    run.pause(run.chance.uniform(1, 3))
    client.config_set("maxclients", before)
    run.strike()
