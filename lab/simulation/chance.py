"""Seeded chance: the same parts give the same draws on every machine."""

from __future__ import annotations

import random


def seeded(*parts: object) -> random.Random:
    """A generator of its own for each part of the simulation, so that one does not disturb the others."""
    return random.Random(" ".join(map(str, parts)))
