"""The names of one installation's queues and exchanges, where several installations share a broker.

    Names().qualify("provider.openai")        -> provider.openai
    Names("blue").qualify("provider.openai")  -> provider.openai@blue

Holds: names of two installations are never equal, since neither plain names nor encoded namespaces contain '@'.
"""

from __future__ import annotations

from dataclasses import dataclass

from dicast.workers.store.keys import encode

_MARK = "@"


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one installation; without a namespace they are plain."""

    namespace: str = ""

    def qualify(self, plain: str) -> str:
        return f"{plain}{_MARK}{encode(self.namespace)}" if self.namespace else plain


def plain(name: str) -> str:
    """Return the name without its namespace."""
    return name.partition(_MARK)[0]
