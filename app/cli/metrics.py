"""`dicast metrics`: one scrape of what the store knows."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from dicast.app.cli.console import Terminal
from dicast.app.cli.run import application
from dicast.app.monitoring.metrics import SharedCollector


def show_metrics(terminal: Terminal) -> None:
    """Raises redis errors: a scrape without the store has nothing to say here."""
    dicast = application(terminal)
    seen = dicast.scrape()
    registry = CollectorRegistry()
    registry.register(SharedCollector(lambda: seen))
    terminal.emit(generate_latest(registry).decode().rstrip("\n"))
