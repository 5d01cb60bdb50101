"""Pictures of the cases, as SVG: how much of the capacity, and how it was used over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from lab.bench.observed import BIN_S
from lab.bench.report import Run, Section, summary

BARS = {"steady-900": "capacity_%", "steady-3000": "capacity_%", "ceiling": "calls_per_s"}
WIDTH, ROW, HEIGHT = 9.0, 0.42, 3.6


def draw(runs: Sequence[Run], section: Section, folder: Path) -> None:
    """Write the section's picture; bars where one figure tells it, the calls served over time elsewhere. A section
    without columns brings its own."""
    present = {name: label for name, label in section.labels.items() if summary(runs, section.case, name)}
    if not section.plot or not section.columns or not present:
        return
    bars = section.case in BARS
    with rc_context({"svg.hashsalt": "dicast", "font.size": 9}):
        figure = Figure(figsize=(WIDTH, ROW * len(present) + 1.2 if bars else HEIGHT), layout="tight")
        axes = figure.add_subplot()
        (_bars if bars else _curves)(axes, runs, section, present)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(section.title, loc="left")
        figure.savefig(folder / section.plot, format="svg", metadata={"Date": None})


def _bars(axes: Any, runs: Sequence[Run], section: Section, present: dict[str, str]) -> None:
    figure = BARS[section.case]
    spreads = [summary(runs, section.case, name)[figure] for name in present]
    colours = ["tab:blue" if name.startswith("dicast") else "silver" for name in present]
    errors = [[s.mid - s.low for s in spreads], [s.high - s.mid for s in spreads]]
    axes.barh(list(present.values()), [s.mid for s in spreads], xerr=errors, color=colours, ecolor="black", capsize=2)
    axes.invert_yaxis()
    axes.set_xlabel(next(column.heading for column in section.columns if column.figure == figure))


def _curves(axes: Any, runs: Sequence[Run], section: Section, present: dict[str, str]) -> None:
    for name, label in present.items():
        mine = [run["curve"] for run in runs if run["case"] == section.case and run["contender"] == name]
        curve = sorted(mine, key=len)[len(mine) // 2]
        style = {"linewidth": 2.2} if name.startswith("dicast") else {"linewidth": 1.1}
        axes.plot([BIN_S * n for n in range(len(curve))], curve, label=label, **style)
    axes.set_xlabel("seconds since the first call")
    axes.set_ylabel("calls served at once")
    axes.legend(frameon=False)
