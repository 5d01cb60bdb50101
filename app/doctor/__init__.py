"""Checks an installation. Each check yields findings: a fact, its severity, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dicast.app.doctor.finding import Finding, Severity
from dicast.app.domain.printable import printable
from dicast.config.settings import Settings, SettingsError

__all__ = ["Finding", "Severity", "examine"]

MESSAGE_CHARS = 500


def examine(environ: Mapping[str, str], *, call: bool = False) -> Iterator[Finding]:
    """Check everything, and yield each finding as soon as it is known. Secrets are masked.

    With `call`, each pool that can be used is asked one tiny question, under a lease like any other call's.
    """
    try:
        settings = Settings.from_env(environ)
    except SettingsError as error:
        yield Finding(Severity.ERROR, "settings", str(error), "correct the environment or the .env file")
        return
    # Not before: the application reads the settings as it is imported.
    from dicast.app.application import create_app  # noqa: PLC0415
    from dicast.app.doctor.checks import examined  # noqa: PLC0415
    from dicast.config.pools import PoolsError  # noqa: PLC0415

    dicast = create_app(environ)
    try:
        hidden = dicast.secrets()
    except PoolsError:  # examined and reported below
        hidden = settings.secrets()
    for finding in examined(dicast, call=call):
        yield Finding(finding.severity, finding.area, _masked(finding.message, hidden), _masked(finding.advice, hidden))


def _masked(text: str, hidden: list[str]) -> str:
    for secret in hidden:
        text = text.replace(secret, "***")
    return printable(text, MESSAGE_CHARS)
