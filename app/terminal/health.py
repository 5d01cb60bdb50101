"""`dicast health`: is the worker of this host getting on?"""

from __future__ import annotations

import socket
import sys

from app.celery import create_app
from app.terminal.console import Exit
from config.settings import environment


def check_health() -> Exit:
    """Prints one line. Raises `SettingsError` or redis errors, which are ill health too."""
    dicast = create_app(environment())
    here = [node for node in dicast.registry.alive() if node.host == socket.gethostname()]
    stuck = [f"{node.name} takes nothing from {node.stuck}" for node in here if node.stuck]
    sys.stdout.write(("; ".join(stuck) or (f"{len(here)} well" if here else "no worker of this host is heard")) + "\n")
    return Exit.OK if here and not stuck else Exit.FAILED
