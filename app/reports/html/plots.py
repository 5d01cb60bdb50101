"""Plots as static SVG, drawn by matplotlib, in the colours of the page that contains them.

matplotlib, because its SVG needs no script: a plot takes some kilobytes that any reader, printer and screen reader
understands, while vega-lite and plotly bring megabytes of JavaScript. Its colours are replaced by classes that the
page's style sheet colours for light, dark and paper; its inline styles become attributes, so that the page may forbid
inline styles. Without the extra `plots` there are no plots, and the tables beside them say the same.
"""

from __future__ import annotations

import hashlib
import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import Any
from xml.etree import ElementTree

INK, FAINT, FIRST, SECOND = "#101010", "#202020", "#303030", "#404040"
TONES = ("#505050", "#515151", "#525252", "#535353", "#545454", "#555555")
ORDERED = ("#606060", "#616161", "#626262", "#636363", "#646464", "#656565")
"""Shades from weak to strong, for labels that have an order."""
MOST_TONES = len(TONES)
CLASSES = {
    INK: "ink", FAINT: "faint", FIRST: "one", SECOND: "two",
    **{tone: f"tone-{n}" for n, tone in enumerate(TONES)}, **{tone: f"rank-{n}" for n, tone in enumerate(ORDERED)},
}  # fmt: skip
"""The page's style sheet has `.fill-one`, `.line-one` and so on."""
SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
MOST_BARS = 40
SETTINGS = {
    "svg.fonttype": "none", "text.parse_math": False, "font.size": 9, "font.family": "sans-serif",
    "axes.edgecolor": FAINT, "axes.labelcolor": INK, "text.color": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 9, "axes.titleweight": "bold",
    "figure.constrained_layout.use": True, "axes.axisbelow": True, "grid.color": FAINT, "grid.linewidth": 0.3,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Histogram:
    """The scores of one dimension: how often each occurs, from the lowest to the highest of the scale."""

    title: str
    low: int
    counts: Sequence[int]
    labels: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Whisker:
    """A value with its interval. `second` draws it in the second colour, which tells people from judges."""

    label: str
    value: float
    low: float
    high: float
    second: bool = False


@dataclass(frozen=True, slots=True)
class StackedBar:
    """A bar whose parts show how often each of several outcomes occurred."""

    label: str
    counts: Sequence[int]


@dataclass(frozen=True, slots=True)
class Curve:
    """Values with their intervals along a scale."""

    title: str
    points: Sequence[tuple[float, float, float, float]]
    """(x, value, low, high)"""


@dataclass(frozen=True, slots=True)
class Dot:
    """A value with its interval on the axis of a small chart, and the same in words. `leads` draws it in colour."""

    label: str
    value: float | None
    low: float | None
    high: float | None
    text: str
    leads: bool = False


NAME_WIDTH, AXIS_WIDTH, VALUE_WIDTH, ROW = 96, 150, 34, 20
NAME_LETTERS = 15
_MARK = '<line x1="{low}" x2="{high}" y1="{y}" y2="{y}" class="line-{tone}" stroke-width="2"/>'


def dots(rows: Sequence[Dot], axis: tuple[float, float], ticks: Sequence[tuple[float, str]], title: str) -> str:
    """Draw a small chart: a row with a dot and its interval for each value, which needs no matplotlib."""
    height = ROW * len(rows)

    def x(value: float) -> str:
        share = (min(axis[1], max(axis[0], value)) - axis[0]) / (axis[1] - axis[0])
        return f"{NAME_WIDTH + 6 + share * (AXIS_WIDTH - 12):.1f}"

    parts = [
        f'<line x1="{x(at)}" x2="{x(at)}" y1="0" y2="{height}" class="line-rule"/>'
        f'<text x="{x(at)}" y="{height + 12}" text-anchor="middle" class="fill-soft">{escape(label)}</text>'
        for at, label in ticks
    ]
    for row, dot in enumerate(rows):
        y, tone = ROW * row + ROW // 2, "one" if dot.leads else "soft"
        name = dot.label if len(dot.label) <= NAME_LETTERS else dot.label[: NAME_LETTERS - 1] + "…"
        drawn = f'<text x="0" y="{y + 4}" class="fill-ink">{escape(name)}</text>'
        if dot.value is not None:
            if dot.low is not None and dot.high is not None:
                drawn += _MARK.format(low=x(dot.low), high=x(dot.high), y=y, tone=tone)
            drawn += f'<circle cx="{x(dot.value)}" cy="{y}" r="4" class="fill-{tone}"/>'
        value = dot.text.partition(" (")[0] if dot.value is not None else "–"
        drawn += (
            f'<text x="{NAME_WIDTH + AXIS_WIDTH + VALUE_WIDTH}" y="{y + 4}" text-anchor="end" class="fill-ink">'
            f"{escape(value)}</text>"
        )
        parts.append(f"<g><title>{escape(dot.label)}: {escape(dot.text)}</title>{drawn}</g>")
    return _small(parts, NAME_WIDTH + AXIS_WIDTH + VALUE_WIDTH, height + 16, title)


LEAST_AGREEMENT = -0.2
BAND_WIDTH, BAND_HEIGHT = 180, 22


def band(value: float, ends: tuple[float, float], person: tuple[float, float] | None, title: str) -> str:
    """Draw an agreement with its interval, from slightly below 0 to 1, and that of a person as a band behind it."""

    def x(at: float) -> float:
        share = (min(1.0, max(LEAST_AGREEMENT, at)) - LEAST_AGREEMENT) / (1 - LEAST_AGREEMENT)
        return 6 + share * (BAND_WIDTH - 12)

    middle = BAND_HEIGHT // 2
    parts = []
    if person is not None:
        left, right = map(x, person)
        parts.append(
            f'<rect x="{left:.1f}" width="{max(2.0, right - left):.1f}" y="1" height="{BAND_HEIGHT - 2}" '
            'class="fill-band"/>'
        )
    parts += [
        f'<line x1="6" x2="{BAND_WIDTH - 6}" y1="{middle}" y2="{middle}" class="line-rule"/>',
        f'<line x1="{x(0):.1f}" x2="{x(0):.1f}" y1="3" y2="{BAND_HEIGHT - 3}" class="line-rule"/>',
        _MARK.format(low=f"{x(ends[0]):.1f}", high=f"{x(ends[1]):.1f}", y=middle, tone="one"),
        f'<circle cx="{x(value):.1f}" cy="{middle}" r="4" class="fill-one"/>',
    ]
    return _small(parts, BAND_WIDTH, BAND_HEIGHT, title)


def _small(parts: Sequence[str], width: int, height: int, title: str) -> str:
    whole = "".join(parts)
    name = "s" + hashlib.sha256((title + whole).encode("utf-8", "replace")).hexdigest()[:10]
    return (
        f'<svg viewBox="0 0 {width} {height}" font-size="11" role="img" aria-labelledby="{name}">'
        f'<title id="{name}">{escape(title)}</title>{whole}</svg>'
    )


def available() -> bool:
    """Return whether matplotlib is installed."""
    try:
        import matplotlib  # noqa: F401, PLC0415  (takes long to load)
    except ImportError:
        return False
    return True


def histograms(data: Sequence[Histogram], title: str) -> str:
    """Draw small bar charts side by side, one for each dimension."""
    columns = min(3, len(data))
    rows = -(-len(data) // columns)
    with _drawing(columns, rows, width=2.5 * columns, height=1.6 * rows) as (figure, axes):
        for axis, histogram in zip(axes, data, strict=False):
            axis.bar(range(len(histogram.counts)), histogram.counts, color=FIRST, width=0.85)
            step = max(1, -(-len(histogram.counts) // 6))
            ticks = list(range(0, len(histogram.counts), step))
            names = [histogram.labels[tick] if histogram.labels else str(histogram.low + tick) for tick in ticks]
            _name_ticks(axis, ticks, names)
            axis.set_title(histogram.title, loc="left")
            axis.yaxis.set_major_locator(_whole_numbers())
        most = max((count for histogram in data for count in histogram.counts), default=1)
        for axis in axes[: len(data)]:
            axis.set_ylim(0, 1.05 * most)  # one axis, so that dimensions can be compared
        for axis in axes[len(data) :]:
            axis.set_visible(False)
        return _svg(figure, title)


LETTERS_SIDE_BY_SIDE = 24
"""The letters of all tick labels that fit beside each other under a small chart; longer ones are slanted."""
TICK_LETTERS = 14


def _name_ticks(axis: Any, ticks: Sequence[int], names: Sequence[str]) -> None:
    cut = [name if len(name) <= TICK_LETTERS else name[: TICK_LETTERS - 1] + "…" for name in names]
    slanted = sum(map(len, cut)) > LETTERS_SIDE_BY_SIDE
    how = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if slanted else {}
    axis.set_xticks(ticks, cut, **how)


def whiskers(values: Sequence[Whisker], title: str, label: str, *, zero: float | None = None) -> str:
    """Draw values with intervals, one below the other, and a line at `zero`."""
    with _drawing(1, 1, width=7.0, height=0.7 + 0.24 * len(values)) as (figure, (axes,)):
        for row, whisker in enumerate(reversed(values)):
            colour = SECOND if whisker.second else FIRST
            axes.plot([whisker.low, whisker.high], [row, row], color=colour, linewidth=1.6)
            axes.plot([whisker.value], [row], color=colour, marker="s" if whisker.second else "o", markersize=5)
        axes.set_yticks(range(len(values)), [whisker.label for whisker in reversed(values)])
        axes.set_ylim(-0.7, len(values) - 0.3)
        axes.set_xlabel(label)
        axes.grid(axis="x")
        if zero is not None:
            axes.axvline(zero, color=INK, linewidth=0.8)
        return _svg(figure, title)


def stacked(bars: Sequence[StackedBar], names: Sequence[str], title: str, *, ordered: bool = False) -> str:
    """Draw a bar for each, one below the other, in shares of its sum; at most `MOST_TONES` names, from weak to strong
    colours if they are `ordered`."""
    step = MOST_TONES // max(1, len(names)) if ordered else 1
    tones = [(ORDERED if ordered else TONES)[at * step] for at in range(len(names))]
    with _drawing(1, 1, width=7.0, height=1.0 + 0.28 * len(bars)) as (figure, (axes,)):
        rows = list(range(len(bars)))[::-1]
        offsets = [0.0] * len(bars)
        for at, name in enumerate(names):
            wide = [100 * bar.counts[at] / max(1, sum(bar.counts)) for bar in bars]
            axes.barh(rows, wide, left=offsets, color=tones[at], height=0.7, label=name)
            offsets = [start + more for start, more in zip(offsets, wide, strict=True)]
        axes.set_yticks(rows, [bar.label for bar in bars])
        axes.set_xlim(0, 100)
        axes.set_xlabel("percent")
        figure.legend(loc="outside upper center", ncols=min(6, len(names)), frameon=False, fontsize=8)
        return _svg(figure, title)


def curves(data: Sequence[Curve], title: str, axes_names: tuple[str, str]) -> str:
    """Draw calibration curves; the diagonal is what a calibrated judge would reach."""
    columns = min(3, len(data))
    rows = -(-len(data) // columns)
    with _drawing(columns, rows, width=2.5 * columns, height=2.3 * rows) as (figure, axes):
        for axis, curve in zip(axes, data, strict=False):
            ends = [min(x for x, *_ in curve.points), max(x for x, *_ in curve.points)]
            axis.plot(ends, ends, color=FAINT, linewidth=0.8, linestyle="--")
            for x, value, low, high in curve.points:
                axis.plot([x, x], [low, high], color=FIRST, linewidth=1.4)
                axis.plot([x], [value], color=FIRST, marker="o", markersize=4)
            axis.set_title(curve.title, loc="left")
            axis.set_xlabel(axes_names[0])
            axis.set_ylabel(axes_names[1])
        for axis in axes[len(data) :]:
            axis.set_visible(False)
        return _svg(figure, title)


def _whole_numbers() -> Any:
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    return MaxNLocator(nbins=3, integer=True)


@contextmanager
def _drawing(columns: int, rows: int, *, width: float, height: float) -> Iterator[tuple[Any, Any]]:
    import matplotlib as mpl  # noqa: PLC0415  (takes long to load)
    from matplotlib.backends.backend_svg import FigureCanvasSVG  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context(SETTINGS), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the font that measures may lack letters of a name
        figure = Figure(figsize=(width, height))
        FigureCanvasSVG(figure)
        axes = figure.subplots(rows, columns, squeeze=False).flatten()
        yield figure, axes


def _svg(figure: Any, title: str) -> str:
    file = io.StringIO()
    none = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(file, format="svg", transparent=True, metadata=none)
    return restyled(file.getvalue(), title)


def restyled(document: str, title: str) -> str:
    """Return an SVG of matplotlib's in the page's colours, without styles and metadata, with ids that are unique on
    the page, and with `title` for screen readers."""
    root = ElementTree.fromstring(document)  # noqa: S314  (made here, by matplotlib)
    prefix = "p" + hashlib.sha256((title + document).encode()).hexdigest()[:8]
    used = set(re.findall(r"url\(#([^)]+)\)|href=\"#([^\"]+)\"", document))
    referenced = {name for pair in used for name in pair if name}
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{SVG}}}metadata", f"{{{SVG}}}style"):
                parent.remove(child)
    for node in root.iter():
        _restyle(node, prefix, referenced)
    root.attrib.pop("width", None)
    root.attrib.pop("height", None)
    root.set("role", "img")
    root.set("aria-labelledby", f"{prefix}-title")
    label = ElementTree.Element(f"{{{SVG}}}title", {"id": f"{prefix}-title"})
    label.text = title
    root.insert(0, label)
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    return ElementTree.tostring(root, encoding="unicode")


def _restyle(node: ElementTree.Element, prefix: str, referenced: set[str]) -> None:
    classes = []
    for pair in node.attrib.pop("style", "").split(";"):
        key, _, value = (part.strip() for part in pair.partition(":"))
        if key == "font":
            size = re.match(r"(?:bold )?([\d.]+)px", value)
            node.set("font-size", size[1] if size else "9")
            if value.startswith("bold"):
                node.set("font-weight", "bold")
        elif key in ("fill", "stroke") and value in CLASSES:
            classes.append(f"{'fill' if key == 'fill' else 'line'}-{CLASSES[value]}")
        elif key:
            node.set(key, value)
    if node.tag == f"{{{SVG}}}text" and not any(name.startswith("fill") for name in classes):
        classes.append("fill-ink")
    if classes:
        node.set("class", " ".join(classes))
    name = node.attrib.pop("id", None)
    if name in referenced:
        node.set("id", f"{prefix}-{name}")
    for key, value in node.attrib.items():
        if value.startswith("#") and key.endswith("href"):
            node.set(key, f"#{prefix}-{value[1:]}")
        elif value.startswith("url(#"):
            node.set(key, f"url(#{prefix}-{value[5:]}")
