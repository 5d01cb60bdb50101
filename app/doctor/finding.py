"""What a check says: how bad, where, what, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `advice` is empty where nothing is to be done."""

    severity: Severity
    area: str
    message: str
    advice: str = ""
