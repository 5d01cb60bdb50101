"""Errors of operations on the cluster."""

from __future__ import annotations

from dicast.errors import DicastError


class UnknownNode(DicastError, LookupError):
    """No node has this id, or not exactly one has this name."""

    problem = "unknown-node"


class BadDeadline(DicastError, ValueError):
    """The deadline is not a number of seconds, or longer than a day."""

    problem = "request-refused"


class NodeLeaves(DicastError):
    """The node is being removed, and takes no other order."""

    problem = "node-leaves"

    def __init__(self, node: str) -> None:
        super().__init__(f"node {node} is being removed, which cannot be taken back; start a worker in its place")


class NodeBusy(DicastError):
    """The node has `open` calls open, and is not removed unless that is forced."""

    problem = "node-busy"

    def __init__(self, node: str, open_calls: int) -> None:
        calls = f"{open_calls} call{'' if open_calls == 1 else 's'}"
        super().__init__(f"node {node} has {calls} open: drain it first, or force it")
        self.node, self.open = node, open_calls
