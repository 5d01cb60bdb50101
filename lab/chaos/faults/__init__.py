"""All faults, by name. Each spoils at a seeded moment and heals again."""

from lab.chaos.catalogue import CATALOGUE
from lab.chaos.faults import answers, broker, callers, clocks, network, processes, provider, settings, store

__all__ = [
    "CATALOGUE", "answers", "broker", "callers", "clocks", "network", "processes", "provider", "settings", "store",
]  # fmt: skip
