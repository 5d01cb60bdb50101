"""All faults, by name. Each spoils at a seeded moment and heals again."""

from chaos.catalogue import CATALOGUE
from chaos.faults import answers, broker, callers, clocks, network, processes, provider, settings, store

__all__ = [
    "CATALOGUE", "answers", "broker", "callers", "clocks", "network", "processes", "provider", "settings", "store",
]  # fmt: skip
