"""The result of a check: severity, area, message and advice."""

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
    """The result of one check. `advice` is empty where nothing is to be done."""

    severity: Severity
    area: str
    message: str
    advice: str = ""
