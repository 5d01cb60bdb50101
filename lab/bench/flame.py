"""A flame graph of layers: a bar above another was called by it, and is as wide as its share of the samples.

Frames of one layer that call each other are one bar, named after the first of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

LEAST = 0.004
"""Bars under this share of the whole are not drawn."""
SIZE = (12.0, 5.0)
CHARACTERS = 190
"""As many fit into the whole width."""


@dataclass
class Bar:
    """`layer` is empty for frames that nobody owns and that no owned frame called."""

    name: str
    layer: str
    samples: int = 0
    above: dict[tuple[str, str], Bar] = field(default_factory=dict)


def tree(stacks: Iterable[tuple[Sequence[str], int]], layer_of: Callable[[str], str | None]) -> Bar:
    """Frames without a layer of their own count for the one that called them."""
    root = Bar("all", "")
    for frames, samples in stacks:
        bar = root
        bar.samples += samples
        for frame in frames:
            layer = layer_of(frame) or bar.layer
            if layer != bar.layer:
                name = frame.partition(" (")[0]
                bar = bar.above.setdefault((layer, name), Bar(name, layer))
                bar.samples += samples
    return root


def draw(root: Bar, layers: Sequence[str], path: Path) -> None:
    """Write it as SVG; the legend tells the colours of `layers`."""
    from matplotlib import colormaps, rc_context  # noqa: PLC0415  wanted only here
    from matplotlib.figure import Figure  # noqa: PLC0415
    from matplotlib.patches import Rectangle  # noqa: PLC0415

    colours = {layer: colormaps["tab20"](n % 20) for n, layer in enumerate(layers)}
    with rc_context({"svg.hashsalt": "dicast", "font.size": 7}):
        figure = Figure(figsize=SIZE, layout="constrained")
        axes = figure.add_subplot()
        deepest = _draw(axes, root, 0.0, 0, root.samples, colours)
        axes.set_xlim(0, 1)
        axes.set_ylim(1, deepest + 1)
        axes.set_axis_off()
        handles = [Rectangle((0, 0), 1, 1, facecolor=colours[layer]) for layer in layers]
        figure.legend(handles, layers, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
        figure.savefig(path, metadata={"Date": None})


def _draw(axes, bar: Bar, left: float, depth: int, whole: int, colours) -> int:  # type: ignore[no-untyped-def]
    """Returns the greatest depth."""
    share = bar.samples / whole
    if bar.layer:
        axes.broken_barh([(left, share)], (depth, 0.94), facecolor=colours[bar.layer], linewidth=0)
        room = int(share * CHARACTERS) - 1
        if room > 3:
            axes.text(left + 0.002, depth + 0.45, bar.name[:room], va="center", clip_on=True)
    deepest = depth
    for child in sorted(bar.above.values(), key=lambda above: (above.layer, -above.samples)):
        if child.samples / whole >= LEAST:
            deepest = max(deepest, _draw(axes, child, left, depth + 1, whole, colours))
        left += child.samples / whole
    return deepest
