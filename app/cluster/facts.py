"""The facts that this process reports about itself as a node."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Protocol

from dicast.app.providers.registry import key_trouble
from dicast.app.reports.assessing import SCORES, has_libraries
from dicast.workers.nodes.registry import Node

if TYPE_CHECKING:
    from dicast.config.pools import Pools
    from dicast.config.settings import Settings


class Environment(Protocol):
    """The part of the application that the facts are derived from."""

    environ: Mapping[str, str]
    settings: Settings

    @property
    def pools(self) -> Pools: ...


def installed_version() -> str:
    """Return Dicast's version; 'unknown' if it is run from its sources and not installed."""
    try:
        return version("dicast")
    except PackageNotFoundError:
        return "unknown"


def node_here(name: str, slots: int, env: Environment, labels: Mapping[str, str]) -> Node:
    """Return this process as a node with Celery's node name."""
    import psutil  # noqa: PLC0415  (only workers need it)

    from dicast.workers.system.accelerators import accelerators  # noqa: PLC0415

    return Node.for_this_process(
        name, limit=env.settings.max_concurrent_llm_calls, slots=slots, labels=labels,
        missing_keys=tuple(missing_keys(env)), version=installed_version(), memory_bytes=psutil.virtual_memory().total,
        accelerators=accelerators(), missing_extras=missing_extras(),
    )  # fmt: skip


def missing_extras() -> tuple[str, ...]:
    """Return the optional parts of this program whose libraries are not installed here."""
    return () if has_libraries() else (SCORES,)


def unserved(env: Environment, labels: Mapping[str, str]) -> dict[str, str]:
    """Return the pools whose units a node with these labels does not take, each with the reason."""
    lacking = {spec.name: why for spec in env.pools.pools.values() if (why := lacks(spec.labels, labels))}
    return {**lacking, **missing_keys(env)}


def lacks(demanded: Mapping[str, str], labels: Mapping[str, str]) -> str:
    """Return a phrase with the demanded labels that are missing; '' if none are."""
    missing = ", ".join(f"{name}={value}" for name, value in sorted(demanded.items()) if labels.get(name) != value)
    return f"it demands {missing}" if missing else ""


def missing_keys(env: Environment) -> dict[str, str]:
    """Return the pools whose key this process lacks, each with what is missing."""
    return {
        spec.name: trouble
        for spec in env.pools.pools.values()
        if (trouble := key_trouble(spec, env.settings, env.environ))
    }
