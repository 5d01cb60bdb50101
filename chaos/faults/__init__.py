"""All faults, by name. Each spoils at a seeded moment and heals again."""

from chaos.catalogue import CATALOGUE
from chaos.faults import broker, callers, clocks, network, processes, provider, store

__all__ = ["CATALOGUE", "broker", "callers", "clocks", "network", "processes", "provider", "store"]
