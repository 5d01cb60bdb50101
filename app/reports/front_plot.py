"""The plot of a search for panels: cost of an item against agreement with people."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dicast.app.domain.findings import PanelFront
from dicast.app.domain.printable import printable
from dicast.app.reports.assessing import MISSING, NoLibraries
from dicast.app.reports.durable import replacing
from dicast.app.reports.findings_table import panel_name
from dicast.errors import DicastError

FORMATS = (".svg", ".png")
WIDTH_IN, HEIGHT_IN = 7.0, 4.5
MOST_LABELLED = 40
"""Characters of a panel's name beside its point."""


class NoPlot(DicastError, ValueError):
    """The plot cannot be drawn."""


def plot_fronts(fronts: Sequence[PanelFront], out: Path, *, unit: str) -> None:
    """Write one image with a subplot for each dimension, whole or not at all.

    Each shows all panels as measured on the items that they were chosen on, and the front as measured on other items,
    with its intervals. Raises `NoPlot`, `NoLibraries`, OSError.
    """
    if out.suffix.lower() not in FORMATS:
        raise NoPlot(f"--plot: the file must end in {', '.join(FORMATS)}, got {out.name[:80]!r}")
    plotted = [front for front in fronts if front.tried]
    if not plotted:
        raise NoPlot(f"--plot: there is no panel to show, because {fronts[0].reason}")
    try:
        from matplotlib import rc_context  # noqa: PLC0415
        from matplotlib.figure import Figure  # noqa: PLC0415  (takes long to load)
    except ImportError as error:
        raise NoLibraries(MISSING) from error
    kind = out.suffix[1:].lower()
    with rc_context({"svg.hashsalt": "dicast", "font.size": 9}):
        figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN * len(plotted)), layout="constrained")
        for front, axis in zip(plotted, figure.subplots(len(plotted), squeeze=False)[:, 0], strict=True):
            _draw(front, axis, unit)
        with replacing(out, private=False) as file:
            figure.savefig(file, format=kind, metadata={"Date": None} if kind == "svg" else None)


def _draw(front: PanelFront, axis: Any, unit: str) -> None:
    costs, apparent = zip(*front.tried, strict=True)
    axis.scatter(costs, apparent, s=12, color="0.78", label="tried (as seen by the items that choose)", zorder=1)
    measured = [option for option in front.front if option.agreement.is_known]
    if measured:
        values = [option.agreement.value or 0.0 for option in measured]
        below = [value - (option.agreement.low or 0.0) for value, option in zip(values, measured, strict=True)]
        above = [(option.agreement.high or 0.0) - value for value, option in zip(values, measured, strict=True)]
        places = [option.cost for option in measured]
        label = "not beaten by a cheaper one (on other items, 95 %)"
        axis.errorbar(places, values, yerr=[below, above], fmt="o-", color="tab:blue", capsize=3, label=label, zorder=3)
        for option, place, value in zip(measured, places, values, strict=True):
            axis.annotate(
                printable(panel_name(option), MOST_LABELLED).replace("$", r"\$"), (place, value), xytext=(5, -12),
                textcoords="offset points", fontsize=8,
            )  # fmt: skip
    if front.person.is_known:
        axis.axhline(
            front.person.value, color="tab:orange", linestyle="--", linewidth=1, label="a person with the others"
        )
    axis.set_title(printable(front.dimension, MOST_LABELLED).replace("$", r"\$"), loc="left")
    axis.set_xlabel(f"cost of an item ({unit})")
    axis.set_ylabel(f"agreement with people ({front.measure})")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=8, frameon=False)
