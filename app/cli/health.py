"""`dicast health`: check whether the worker of this host works."""

from __future__ import annotations

import socket
import sys

from dicast.app.application import create_app
from dicast.app.cluster import snapshot
from dicast.config.settings import environment
from dicast.errors import Exit

BEAT_SILENT_S = 30.0


def check_health(*, beat: bool = False) -> Exit:
    """Print one line about the worker, or the beat, of this host, and return the exit code. Raises `SettingsError` or
    redis errors, which mean that it is unhealthy, too."""
    dicast = create_app(environment())
    if beat:
        age_s = snapshot.age_s(dicast.settings.state_dir)
        line = "no beat of this host is heard" if age_s is None else f"the beat sent its last tick {age_s:.0f} s ago"
        sys.stdout.write(f"{line}\n")
        return Exit.OK if age_s is not None and age_s < BEAT_SILENT_S else Exit.FAILED
    local_nodes = [node for node in dicast.living_nodes() if node.host == socket.gethostname()]
    stuck = [f"{node.name} takes no work: {node.stuck}" for node in local_nodes if node.stuck]
    sys.stdout.write(
        ("; ".join(stuck) or (f"{len(local_nodes)} well" if local_nodes else "no worker of this host is heard")) + "\n"
    )
    return Exit.OK if local_nodes and not stuck else Exit.FAILED
