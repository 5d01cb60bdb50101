"""`dicast serve` runs the HTTP server."""

from __future__ import annotations

from dicast.app import logs
from dicast.app.cli.console import Refused, Terminal
from dicast.app.cli.run import application


def run_server(terminal: Terminal, host: str | None, port: int | None) -> None:
    """Serve HTTP until interrupted. Raises `SettingsError`, or `Refused` if the server's packages are not installed."""
    dicast = application(terminal)
    try:
        from dicast.app.server.serving import serve  # noqa: PLC0415  (needs the extra `server`)
    except ModuleNotFoundError as error:
        raise Refused(f"{error.name} is missing: pip install -e '.[server]'") from None
    logs.configure(dicast.settings.log_level, dicast.secrets())
    settings = dicast.settings
    notify = terminal.say if terminal.err.is_terminal else None
    serve(
        dicast, settings.server_host if host is None else host, settings.server_port if port is None else port, notify
    )
