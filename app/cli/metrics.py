"""`dicast metrics` prints one scrape of the store."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from dicast.app.cli.console import Terminal
from dicast.app.cli.run import application
from dicast.app.monitoring.metrics import SharedCollector


def show_metrics(terminal: Terminal) -> None:
    """Print the metrics. Raises redis errors: without the store there is nothing to print."""
    dicast = application(terminal)
    snapshot = dicast.scrape()
    registry = CollectorRegistry()
    registry.register(SharedCollector(lambda: snapshot))
    terminal.emit(generate_latest(registry).decode().rstrip("\n"))
