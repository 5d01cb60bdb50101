"""`dicast stop` ends the processes that Dicast started on this machine and left running for others."""

from __future__ import annotations

from dicast.app.application import Dicast
from dicast.app.cli.console import Refused, Terminal
from dicast.app.cli.run import application
from dicast.app.providers.local import running_local_model, stop_local_model
from dicast.workers.store import embedded


def stop_daemons(terminal: Terminal, *, force: bool) -> None:
    """Stop the embedded store and the local model of the state directory. The store's data stay on disk.

    Raises `Refused` while workers use that store, unless `force` is set.
    """
    dicast = application(terminal)
    state_dir = dicast.settings.state_dir
    stopped = []
    # The store first: if it is refused, nothing is stopped.
    if dicast.settings.redis_url is None and _stop_store(dicast, force=force):
        stopped.append("the embedded Valkey")
    if running_local_model(state_dir) is not None and stop_local_model(state_dir):
        stopped.append("the local model")
    terminal.say(f"Stopped {' and '.join(stopped)} of {state_dir}." if stopped else f"Nothing runs in {state_dir}.")


def _stop_store(dicast: Dicast, *, force: bool) -> bool:
    """Stop the embedded store, and return whether it was running. Only a running store knows which workers use it, so
    it is started for the check."""
    state_dir = dicast.settings.state_dir
    if not force and embedded.find_running(state_dir) and (nodes := [node.name for node in dicast.registry.alive()]):
        raise Refused(f"workers live on this store ({', '.join(nodes)}): stop them first, or use --force")
    return embedded.stop(state_dir)
