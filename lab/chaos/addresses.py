"""Machines with addresses of their own, on one machine: network namespaces on a bridge that leads nowhere else.

Needs root and iproute2 (`available`). The hub is where servers listen, the others reach it alone and each other.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Self

NETWORK = "10.77.0"
HUB = f"{NETWORK}.1"


def available() -> bool:
    """Whether namespaces can be made here."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"dicast-{os.getpid()}-try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    if made:
        _ip("netns", "del", name)
    return made


class Machines:
    """A hub and `count` machines around it, until the context ends. A process that runs on a machine sees its network
    and nothing else of the host's."""

    def __init__(self, count: int) -> None:
        self._prefix = f"dicast-{os.getpid()}"
        self.names = [f"{self._prefix}-{number}" for number in range(1, count + 1)]
        self.hub = f"{self._prefix}-hub"

    def __enter__(self) -> Self:
        _ip("netns", "add", self.hub)
        self._in(self.hub, "link", "set", "lo", "up")
        self._in(self.hub, "link", "add", "bridge", "type", "bridge")
        self._in(self.hub, "addr", "add", f"{HUB}/24", "dev", "bridge")
        self._in(self.hub, "link", "set", "bridge", "up")
        for number, name in enumerate(self.names, 1):
            _ip("netns", "add", name)
            port = f"port{number}"
            self._in(self.hub, "link", "add", port, "type", "veth", "peer", "name", "eth", "netns", name)
            self._in(self.hub, "link", "set", port, "master", "bridge")
            self._in(self.hub, "link", "set", port, "up")
            self._in(name, "addr", "add", f"{NETWORK}.{10 + number}/24", "dev", "eth")
            self._in(name, "link", "set", "eth", "up")
            self._in(name, "link", "set", "lo", "up")
        return self

    def __exit__(self, *_: object) -> None:
        for name in [*self.names, self.hub]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    def cut(self, number: int) -> None:
        """Nothing reaches the `number`th machine, nor leaves it; connections stay open and silent."""
        self._in(self.hub, "link", "set", f"port{number}", "down")

    def heal(self, number: int) -> None:
        self._in(self.hub, "link", "set", f"port{number}", "up")

    def start(self, machine: str, command: list[str], log: Path, **options: Any) -> subprocess.Popen[bytes]:
        """A process on that machine, in a group of its own, whose output goes to `log`."""
        with log.open("ab") as file:
            return subprocess.Popen(
                ["ip", "netns", "exec", machine, *command], stdout=file, stderr=file, start_new_session=True, **options
            )

    def _in(self, name: str, *command: str) -> None:
        _ip("-n", name, *command)


def _ip(*command: str) -> None:
    subprocess.run(["ip", *command], check=True, capture_output=True)
