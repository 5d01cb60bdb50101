"""Places what a job compares (systems, candidates, dimensions, labels) in sentences and in charts.

A system is called the best one only if it clearly leads each other system in some dimension, and is clearly behind
none in any. Clear is what the report's corrected p-values call clear (`CLEAR`). People's opinion, where it is known,
goes before the judges'.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, permutations

from dicast.app.domain.conclusions import Chart, Mark, Subject, Whose
from dicast.app.domain.figure import Figure, interval_text, share_text
from dicast.app.domain.judge_statistics import (
    DimensionStatistics,
    GroupDifference,
    GroupStatistics,
    PreferenceStatistics,
)
from dicast.app.domain.ranking import PAIR_METADATA
from dicast.app.domain.report import DimensionReport, Report, ReportDimension
from dicast.app.domain.text import counted, first_few, joined, percent

CLEAR = 0.05
"""A smaller p, corrected for all claims of the report, or a smaller probability of not being the best, is clear."""
MOST_CHARTS, MOST_ROWS = 24, 30
NAMED = 3
OPINION: Mapping[Whose, str] = {"people": "in people's opinion", "judges": "in the judges' opinion"}
NEEDED_MOST = 50.0
"""More than so many times the items are not recommended."""


@dataclass(frozen=True, slots=True)
class Placement:
    """What a job says about what it compared: sentences, charts, whose opinion it is, and the winner, if there is one.

    `undecided` says what would decide between the best, where nothing does.
    """

    subject: Subject
    sentences: list[str]
    charts: list[Chart] = field(default_factory=list)
    opinion: Whose = "judges"
    winner: str | None = None
    undecided: str | None = None


def title(dimension: ReportDimension) -> str:
    """Return the dimension's name, or its id if it has none."""
    return dimension.name or dimension.id


def standing(report: Report) -> Placement:
    """Return the standing of what the job compared."""
    if not report.scored:
        return Placement("nothing", ["Nothing has a score, so nothing can be said about the items."])
    statistics = _statistics(report)
    if any(dimension.kind == "preference" for dimension in report.dimensions):
        return _of_pairs(report, statistics)
    groups = {name: group for name, area in statistics.items() for group in area.groups if group.by == report.groups[0]}
    if groups:
        return _of_systems(report, groups)
    if all(dimension.kind == "labels" for dimension in report.dimensions):
        return _of_labels(report, statistics)
    return _of_scores(report, statistics)


def _statistics(report: Report) -> dict[str, DimensionStatistics]:
    computed = report.statistics is not None and report.statistics.state == "computed"
    return {entry.dimension: entry for entry in report.statistics.dimensions} if computed and report.statistics else {}


# Systems


@dataclass(frozen=True, slots=True)
class _Race:
    """The systems in one dimension: the gap of each pair (the first less the second), and whether it is clear."""

    dimension: ReportDimension
    group: GroupStatistics
    opinion: Whose
    gaps: dict[tuple[str, str], Figure]
    clear: frozenset[tuple[str, str]]
    hanging: frozenset[frozenset[str]] = frozenset()
    """The pairs that judgements without a score could have made equal."""

    def leads(self, first: str, second: str) -> bool:
        """Return whether the first clearly leads the second."""
        return (first, second) in self.clear

    @property
    def unbeaten(self) -> list[str]:
        """The systems that no other clearly leads."""
        return [mean.name for mean in self.group.means if not any(pair[1] == mean.name for pair in self.clear)]


def _race(dimension: ReportDimension, group: GroupStatistics) -> _Race:
    of_people = [pair for pair in group.people_differences if pair.p is not None]
    pairs = of_people or [pair for pair in group.differences if pair.difference.is_known]
    gaps, clear = {}, set()
    for pair in pairs:
        gaps[pair.first, pair.second] = pair.difference
        gaps[pair.second, pair.first] = turned(pair.difference)
        if _is_clear(pair):
            ahead = (pair.difference.value or 0.0) > 0
            clear.add((pair.first, pair.second) if ahead else (pair.second, pair.first))
    hanging = frozenset(frozenset((pair.first, pair.second)) for pair in pairs if pair.hangs_on_missing)
    return _Race(dimension, group, "people" if of_people else "judges", gaps, frozenset(clear), hanging)


def _is_clear(pair: GroupDifference) -> bool:
    """Whether the two can be told apart; the difference that a job's question asked for has no p."""
    if pair.p is not None:
        return pair.p < CLEAR
    low, high = pair.difference.low, pair.difference.high
    return low is not None and high is not None and (low > 0 or high < 0)


def turned(figure: Figure) -> Figure:
    """Return the difference the other way round."""
    if figure.value is None or figure.low is None or figure.high is None:
        return figure
    return figure.model_copy(update={"value": -figure.value, "low": -figure.high, "high": -figure.low})


def _of_systems(report: Report, groups: Mapping[str, GroupStatistics]) -> Placement:
    dimensions = {dimension.id: dimension for dimension in report.dimensions}
    possible = [_race(dimensions[name], group) for name, group in groups.items() if group.reason is None]
    if not possible:
        by, reason = next((group.by, group.reason) for group in groups.values())
        return Placement("systems", [f"The values of {by} cannot be compared, because {reason}."])
    opinion: Whose = "people" if any(race.opinion == "people" for race in possible) else "judges"
    races = [race for race in possible if race.opinion == opinion]
    names = _by_rank(races)
    winner = next((name for name in names if _is_winner(name, names, races)), None)
    undecided = None
    if winner is not None:
        sentences = list(_won(winner, names, races, opinion))
    else:
        sentences, undecided = _undecided(names, races, opinion)
    if others := [title(race.dimension) for race in possible if race.opinion != opinion]:
        sentences.append(f"What people would say in {joined(others)} is not known.")
    sentences += _judges_beside_people(races)
    charts = on_one_axis(
        [_system_chart(race) for race in possible[:MOST_CHARTS]], [race.dimension for race in possible]
    )
    return Placement("systems", sentences, charts, opinion, winner, undecided)


def _by_rank(races: Sequence[_Race]) -> list[str]:
    """Return the systems, those with more clear leads first, then by their mean place on the scales."""
    leads: dict[str, float] = {}
    for race in races:
        span = race.dimension.scale_max - race.dimension.scale_min
        for mean in race.group.means:
            ahead = sum((pair[0] == mean.name) - (pair[1] == mean.name) for pair in race.clear)
            figure = _figure(race, mean.name)
            leads[mean.name] = leads.get(mean.name, 0.0) + ahead + (figure.value or 0.0) / span / 1000
    return sorted(leads, key=lambda name: (-leads[name], name))


def _is_winner(name: str, names: Sequence[str], races: Sequence[_Race]) -> bool:
    others = [other for other in names if other != name]
    return all(
        any(race.leads(name, other) for race in races) and not any(race.leads(other, name) for race in races)
        for other in others
    )


def _won(winner: str, names: Sequence[str], races: Sequence[_Race], opinion: Whose) -> Iterator[str]:
    second = next(name for name in names if name != winner)
    yield f"{winner} is best {OPINION[opinion]}: it leads {second} {_leads(winner, second, races)}."
    if level := [title(race.dimension) for race in races if not race.leads(winner, second)]:
        yield f"In {joined(level[:NAMED])} the two cannot be told apart."
    if hanging := _only_without_missing(winner, names, races):
        yield (
            f"That it leads {joined(hanging[:NAMED])} hangs on the judgements without a score: had they gone the other "
            "way, it might not."
        )
    last = names[-1]
    if len(names) > 2 and all(
        any(race.leads(name, last) for race in races) and not any(race.leads(last, name) for race in races)
        for name in names[:-1]
    ):
        yield f"{last} is last of {len(names)}."


def _only_without_missing(winner: str, names: Sequence[str], races: Sequence[_Race]) -> list[str]:
    """Return the systems that the winner leads only where judgements without a score could have changed that."""

    def is_sure(other: str) -> bool:
        return any(race.leads(winner, other) and frozenset((winner, other)) not in race.hanging for race in races)

    return [name for name in names if name != winner and not is_sure(name)]


def _leads(first: str, second: str, races: Sequence[_Race]) -> str:
    """Say in which dimensions, and by how much, as `in all 2 dimensions, by 0.4 points (0.2 to 0.6) in Tone`."""
    leading = [race for race in races if race.leads(first, second)]
    leading.sort(key=lambda race: -_share_of_scale(race, first, second))
    leads = [f"by {_points(race.gaps[first, second])} in {title(race.dimension)}" for race in leading[:2]]
    if len(leading) == len(races) > 1:
        return f"in {_all(len(races))}, {joined(leads[:1])}"
    more = len(leading) - 2
    return joined(leads) + (f", and in {counted(more, 'more dimension')}" if more > 0 else "")


def _all(dimensions: int) -> str:
    return "both dimensions" if dimensions == 2 else f"all {dimensions} dimensions"


def _share_of_scale(race: _Race, first: str, second: str) -> float:
    value = race.gaps[first, second].value or 0.0
    return abs(value) / (race.dimension.scale_max - race.dimension.scale_min)


def _points(figure: Figure) -> str:
    """Format a difference as `0.27 points (0.10 to 0.43)`."""
    return f"{figure.value:.2f} points ({figure.low:.2f} to {figure.high:.2f})"


def _undecided(names: Sequence[str], races: Sequence[_Race], opinion: Whose) -> tuple[list[str], str | None]:
    """Return why no system can be called the best, and what would decide it."""
    top = _top(names, races)
    for first, second in combinations(top, 2):
        there = [race for race in races if race.leads(first, second)]
        back = [race for race in races if race.leads(second, first)]
        if there and back:
            return [
                f"No system is best in everything, {OPINION[opinion]}: {first} leads {second} "
                f"{_leads(first, second, there)}, and {second} leads {first} {_leads(second, first, back)}. Which is "
                "better depends on what counts more."
            ], None
    where = title(races[0].dimension) if len(races) == 1 else f"any of {_all(len(races)).removeprefix('all ')}"
    where = where.replace("any of both dimensions", "either dimension").replace("any of ", "any of the ")
    others = [name for name in names if name not in top]
    who = joined(list(top)) if len(top) <= NAMED + 1 else f"{len(top)} of the systems"
    if others:
        sentences = list(_leaders(top, others, races, OPINION[opinion], who, where))
    elif len(names) == 2:
        sentences = [f"{joined(list(names))} cannot be told apart in {where}, {OPINION[opinion]}."]
    else:
        sentences = [f"The {len(names)} systems cannot be told apart in {where}, {OPINION[opinion]}."]
    widest = _widest(top, races)
    if widest is None:
        return sentences, None
    race, first, second = widest
    gap = race.gaps[first, second]
    chance = ", which may be chance among all that this report compares" if (gap.low or 0.0) > 0 else ""
    sentences.append(f"The widest gap is {_points(gap)} in {title(race.dimension)}, of {first} over {second}{chance}.")
    return sentences, _decider(gap, first, second)


def _beats(first: str, second: str, races: Sequence[_Race]) -> bool:
    """Return whether the first leads the second in some dimension, and is led by it in none."""
    return any(race.leads(first, second) for race in races) and not any(race.leads(second, first) for race in races)


def _top(names: Sequence[str], races: Sequence[_Race]) -> list[str]:
    """Return the systems that may be the best: those that no other leads without being led by it."""
    top = [name for name in names if not any(_beats(other, name, races) for other in names if other != name)]
    if len(top) == 1:  # the others are behind somebody, and not all of them behind this one
        top += [name for name in names if name not in top and not _beats(top[0], name, races)]
    return top or list(names)


def _leaders(
    top: Sequence[str], others: Sequence[str], races: Sequence[_Race], opinion: str, who: str, where: str
) -> Iterator[str]:
    """Say which of the best systems lead the `others`, where none of the best leads the rest of them."""
    leaders: dict[tuple[str, ...], list[str]] = {}
    for other in others:
        leaders.setdefault(tuple(name for name in top if _beats(name, other, races)), []).append(other)
    if list(leaders) == [tuple(top)]:
        lead = f"{who} lead {joined(others) if len(others) <= NAMED else first_few(others, NAMED)}, {opinion}"
        yield f"No single system is best: {lead}, but cannot be told apart from each other in {where}."
        return
    yield f"No single system is best, {opinion}: {who} cannot be told apart in {where}."
    clear = [
        f"{joined(names)} {'leads' if len(names) == 1 else 'lead'} "
        f"{joined(behind) if len(behind) <= NAMED else first_few(behind, NAMED)}"
        + (f" {_leads(names[0], behind[0], races)}" if len(names) == len(behind) == 1 else "")
        for names, behind in leaders.items()
        if names
    ]
    if clear:
        yield f"Clear of chance: {'; '.join(clear)}."


def _widest(names: Sequence[str], races: Sequence[_Race]) -> tuple[_Race, str, str] | None:
    """Return the dimension and the pair with the widest gap, in parts of the scale; None if none is known."""
    gaps = [
        (_share_of_scale(race, first, second), n, race, first, second)
        for n, race in enumerate(races)
        for first, second in permutations(names, 2)
        if (first, second) in race.gaps and (race.gaps[first, second].value or 0.0) > 0
    ]
    return max(gaps)[2:] if gaps else None


def _decider(gap: Figure, first: str, second: str) -> str | None:
    """Say how many items it takes at least to tell the two apart if their gap is what it seems: an interval narrows by
    the root of their number, and the correction for the report's other claims takes more."""
    assert gap.value is not None and gap.low is not None and gap.high is not None
    times = ((gap.high - gap.low) / 2 / abs(gap.value)) ** 2 if gap.value else NEEDED_MOST + 1
    if times > NEEDED_MOST:
        return None
    many = f"at least {times:.{int(times < 10)}f} times as many" if times > 1 else "more"
    return f"It takes {many} items to tell {first} from {second}, if the gap is what it seems."


def _judges_beside_people(races: Sequence[_Race]) -> Iterator[str]:
    """Yield where the judges clearly say the opposite of people."""
    for race in races:
        if race.opinion != "people":
            continue
        for pair in race.group.differences:
            ahead = (pair.difference.value or 0.0) > 0
            first, second = (pair.first, pair.second) if ahead else (pair.second, pair.first)
            if pair.p is not None and pair.p < CLEAR and race.leads(second, first):
                where = title(race.dimension)
                yield f"The judges say the opposite in {where}: there they put {first} above {second}."
                return


def _figure(race: _Race, name: str) -> Figure:
    mean = next(mean for mean in race.group.means if mean.name == name)
    return mean.people if race.opinion == "people" and mean.people is not None else mean.mean


def _system_chart(race: _Race) -> Chart:
    rows: list[Mark] = []
    unbeaten = race.unbeaten
    for mean in race.group.means[:MOST_ROWS]:
        ranks = mean.people_ranks if race.opinion == "people" else mean.ranks
        mark = scale_mark(mean.name, mean.items, _figure(race, mean.name), race.dimension)
        leads = mean.name in unbeaten and bool(race.clear)
        rows.append(mark.model_copy(update={"leads": leads, "first": ranks[0] if ranks else None}))
    return Chart(
        title=title(race.dimension), dimension=race.dimension.id, by=race.group.by, opinion=race.opinion,
        unit="percent of the scale", rows=sorted(rows, key=lambda mark: -(mark.place or 0.0)),
        note=_note(unbeaten, len(race.group.means)),
    )  # fmt: skip


FEWEST_PERCENT = 40
"""The narrowest axis, in percent of the scale: a gap of a few percent is not to look like all there is."""
MOST_TICKS = 6


def on_one_axis(charts: Sequence[Chart], dimensions: Sequence[ReportDimension]) -> list[Chart]:
    """Return charts of scores on the part of the scale that their intervals need, with scores as ticks if all
    dimensions have the same scale, else percents of it."""
    ends = [
        end for chart in charts for mark in chart.rows for end in (mark.place, mark.low, mark.high) if end is not None
    ]  # fmt: skip
    low, high = 10.0 * (min(ends, default=0.0) // 10), -10.0 * (-max(ends, default=100.0) // 10)
    if high - low < FEWEST_PERCENT:
        low = min(max(0.0, (low + high - FEWEST_PERCENT) / 2), 100.0 - FEWEST_PERCENT)
        high = low + FEWEST_PERCENT
    scales = {(dimension.scale_min, dimension.scale_max) for dimension in dimensions}
    ticks = [(float(at), f"{at} %") for at in range(0, 101, 25) if low <= at <= high]
    if len(scales) == 1:
        ((least, most),) = scales
        step = max(1, -(-(most - least) // 10))
        places = [(100 * (score - least) / (most - least), str(score)) for score in range(least, most + 1, step)]
        ticks = [(round(at, 3), label) for at, label in places if low <= at <= high]
    ticks = ticks[:: -(-len(ticks) // MOST_TICKS) or 1]
    return [chart.model_copy(update={"axis": (low, high), "ticks": ticks}) for chart in charts]


def _note(unbeaten: Sequence[str], count: int) -> str:
    if len(unbeaten) == 1:
        return f"{unbeaten[0]} leads"
    if len(unbeaten) == count:
        return "cannot be told apart"
    return f"{joined(list(unbeaten))} cannot be told apart" if len(unbeaten) == 2 else (
        f"the best {len(unbeaten)} cannot be told apart"
    )  # fmt: skip


def scale_mark(name: str, items: int, figure: Figure, dimension: ReportDimension) -> Mark:
    """Return the row of a chart for a score: its place between the ends of the scale, in percent."""
    span = dimension.scale_max - dimension.scale_min

    def place(value: float | None) -> float | None:
        return None if value is None else round(100 * (value - dimension.scale_min) / span, 3)

    return Mark(
        name=name, items=items, place=place(figure.value), low=place(figure.low), high=place(figure.high),
        text=interval_text(figure) or (f"{figure.value:.2f}" if figure.value is not None else "not known"),
    )  # fmt: skip


# Pairs and rankings


def _of_pairs(report: Report, statistics: Mapping[str, DimensionStatistics]) -> Placement:
    subject: Subject = "rankings" if set(PAIR_METADATA) <= set(report.keep) else "pairs"
    compared = [
        (dimension, pairs)
        for dimension in report.dimensions
        if dimension.kind == "preference"
        and dimension.id in statistics
        and (pairs := statistics[dimension.id].preferences) is not None
    ]
    if not compared:
        reason = report.statistics.reason if report.statistics is not None else None
        clause = f", because {reason}" if reason else " yet"
        return Placement(subject, [f"Which of the texts is preferred cannot be said{clause}."])
    charts = [_pair_chart(dimension, pairs) for dimension, pairs in compared[:MOST_CHARTS]]
    if not any(pairs.rates for _, pairs in compared):
        return Placement(subject, [_sides(dimension, pairs) for dimension, pairs in compared[:NAMED]], charts)
    winners = {dimension.id: _winner_of_pairs(pairs) for dimension, pairs in compared}
    winners_named = {winner for winner in winners.values() if winner is not None}
    winner = winners_named.pop() if len(winners_named) == 1 else None
    sentences = list(_pair_sentences(compared, winners, winner))
    of_lists = ", of other lists too," if subject == "rankings" else ""
    undecided = None if winner is not None else f"More pairs{of_lists} may tell them apart."
    return Placement(subject, sentences, charts, "judges", winner, undecided)


def _winner_of_pairs(pairs: PreferenceStatistics) -> str | None:
    """Return the candidate that is best beyond chance: probably first, and preferred in more than half of its pairs."""
    if not pairs.contestants or not pairs.rates:
        return None
    first = pairs.contestants[0]
    rate = next((rate.wins for rate in pairs.rates if rate.name == first.name), None)
    beyond = rate is not None and rate.low is not None and rate.low > 0.5
    return first.name if beyond and first.ranks and first.ranks[0] >= 1 - CLEAR else None


def _pair_sentences(
    known: Sequence[tuple[ReportDimension, PreferenceStatistics]], winners: Mapping[str, str | None], winner: str | None
) -> Iterator[str]:
    in_front = [(dimension, pairs) for dimension, pairs in known if winners[dimension.id] is not None] or list(known)
    dimension, pairs = in_front[0]
    count = len(pairs.contestants) or len(pairs.rates)
    where = f" in {title(dimension)}" if len(known) > 1 else ""
    if winner is not None:
        rate = next(rate for rate in pairs.rates if rate.name == winner)
        yield (
            f"{winner} is best of {count} {OPINION['judges']}: it is preferred in {share_text(rate.wins)} of its "
            f"{rate.pairs:,} comparisons{where}."
        )
        if level := [title(other) for other, _ in known if winners[other.id] is None]:
            yield f"In {joined(level[:NAMED])} the best cannot be told apart from the others."
        return
    if len({name for name in winners.values() if name is not None}) > 1:
        bests = [f"{winners[other.id]} in {title(other)}" for other, _ in in_front]
        yield f"Which is best depends on what counts, {OPINION['judges']}: {joined(bests[:NAMED])}."
        return
    most = pairs.rates[0]
    yield (
        f"Which of the {count} is best cannot be told, {OPINION['judges']}: {most.name} is preferred most often"
        f"{where}, in {share_text(most.wins)} of its {most.pairs:,} comparisons{_near(pairs)}."
    )


def _near(pairs: PreferenceStatistics) -> str:
    """Name those whose share of wins may be as high as the first's."""
    first, *others = pairs.rates
    low = first.wins.low or 0.0
    near = [rate.name for rate in others if rate.wins.high is not None and rate.wins.high >= low]
    return f"; {joined(near) if len(near) <= NAMED else first_few(near, NAMED)} may be as good" if near else ""


def _sides(dimension: ReportDimension, pairs: PreferenceStatistics) -> str:
    """Tell how often the first text of a pair is preferred, where nobody has named whose texts they are."""
    whose: Whose = "people" if pairs.people.is_known else "judges"
    figure = pairs.people if pairs.people.is_known else pairs.wins
    if figure.value is None or figure.low is None or figure.high is None:
        return f"Which text of a pair is better in {title(dimension)} cannot be said, because {figure.reason}."
    share = share_text(figure)
    if figure.low > 0.5:
        return f"Text A is better in {title(dimension)} {OPINION[whose]}: it is preferred in {share} of the pairs."
    if figure.high < 0.5:
        return f"Text B is better in {title(dimension)} {OPINION[whose]}: text A is preferred in {share} of the pairs."
    return (
        f"Text A and text B cannot be told apart in {title(dimension)}, {OPINION[whose]}: A is preferred in {share} of "
        "the pairs, ties counted half."
    )


def _pair_chart(dimension: ReportDimension, pairs: PreferenceStatistics) -> Chart:
    ranks = {contestant.name: contestant.ranks for contestant in pairs.contestants}
    winner = _winner_of_pairs(pairs)
    rows = [
        share_mark(rate.name, rate.pairs, rate.wins).model_copy(
            update={"leads": rate.name == winner, "first": next(iter(ranks.get(rate.name, ())), None)}
        )
        for rate in pairs.rates[:MOST_ROWS]
    ]
    if not rows:
        rows = [share_mark("text A", pairs.wins.items, pairs.wins)]
    note = f"{winner} leads" if winner is not None else "the best cannot be told apart" if pairs.rates else ""
    return Chart(
        title=title(dimension), dimension=dimension.id, by="candidate" if pairs.rates else "",
        unit="percent of comparisons won", rows=rows, note=note,
    )  # fmt: skip


def share_mark(name: str, items: int, figure: Figure) -> Mark:
    """Return the row of a chart for a share, in percent."""
    low, high = (None if end is None else round(100 * end, 3) for end in (figure.low, figure.high))
    at = None if figure.value is None else round(100 * figure.value, 3)
    text = share_text(figure) or (percent(figure.value) if figure.value is not None else "not known")
    return Mark(name=name, items=items, place=at, low=low, high=high, text=text)


# Scores and labels of all items


def _of_scores(report: Report, statistics: Mapping[str, DimensionStatistics]) -> Placement:
    marks: list[tuple[Mark, ReportDimension]] = []
    opinions: list[Whose] = []
    for row in report.by_dimension:
        if row.dimension.nominal or not row.scores.n:
            continue
        whose, figure = _mean(row, statistics.get(row.dimension.id))
        items = figure.items or row.scores.n
        marks.append((scale_mark(title(row.dimension), items, figure, row.dimension), row.dimension))
        opinions.append(whose)
    if not marks:
        return _of_labels(report, statistics)
    opinion: Whose = "people" if all(whose == "people" for whose in opinions) else "judges"
    marks.sort(key=lambda pair: -(pair[0].place or 0.0))
    if len(marks) <= NAMED:
        scores = joined([f"{_of_scale(mark, dimension)} in {mark.name}" for mark, dimension in marks])
        sentence = f"The items score {scores}, {OPINION[opinion]}."
    else:
        (high, highest), (low, lowest) = marks[0], marks[-1]
        sentence = (
            f"The items score highest in {high.name}, {_of_scale(high, highest)}, and lowest in {low.name}, "
            f"{_of_scale(low, lowest)}, {OPINION[opinion]}."
        )
    sentences = [sentence]
    if any(row.dimension.kind == "labels" for row in report.by_dimension):
        sentences += _label_sentences(report, statistics)[:NAMED]
    rows = [mark for mark, _ in marks[:MOST_ROWS]]
    whole = Chart(title="All items", dimension="", opinion=opinion, unit="percent of the scale", rows=rows)
    charts = [*on_one_axis([whole], [dimension for _, dimension in marks]), *_label_charts(report, statistics)]
    return Placement("scores", sentences, charts[:MOST_CHARTS], opinion)


def _mean(row: DimensionReport, of: DimensionStatistics | None) -> tuple[Whose, Figure]:
    """Return people's mean over all items where it is known, else the panel's with its interval, else the judges'."""
    whole = of.voices[-1] if of is not None and of.voices else None
    if whole is not None and whole.peoples_mean is not None and whole.peoples_mean.powered.is_known:
        return "people", whole.peoples_mean.powered
    if whole is not None and whole.mean.is_known:
        return "judges", whole.mean
    mean = row.panel.mean if row.panel is not None and row.panel.mean is not None else row.scores.mean
    return "judges", Figure.combined(mean, "mean of all scores")


def _of_scale(mark: Mark, dimension: ReportDimension) -> str:
    """Format a score as `3.84 of 5 (3.75 to 3.93)`."""
    value, _, interval = mark.text.partition(" ")
    scale = f" of {dimension.scale_max}" if dimension.scale_min in (0, 1) else (
        f" on a scale of {dimension.scale_min} to {dimension.scale_max}"
    )  # fmt: skip
    return f"{value}{scale}{' ' + interval if interval else ''}"


def _of_labels(report: Report, statistics: Mapping[str, DimensionStatistics]) -> Placement:
    charts = _label_charts(report, statistics)
    opinion: Whose = "people" if charts and all(chart.opinion == "people" for chart in charts) else "judges"
    return Placement("labels", _label_sentences(report, statistics)[:NAMED], charts, opinion)


def _label_charts(report: Report, statistics: Mapping[str, DimensionStatistics]) -> list[Chart]:
    charts = []
    for row in report.by_dimension:
        if row.dimension.kind != "labels" or not row.scores.n:
            continue
        area = statistics.get(row.dimension.id)
        shares = {share.label: share for share in area.shares} if area is not None else {}
        people = bool(shares) and all(share.people.is_known for share in shares.values())
        marks = []
        for label, count in row.labels.items():
            share = shares.get(label)
            plain = Figure.combined(count / row.scores.n, "share of all scores")
            figure = plain if share is None else share.people if people else share.judges
            marks.append(share_mark(label, figure.items or row.scores.n, figure))
        charts.append(
            Chart(title=title(row.dimension), dimension=row.dimension.id, opinion="people" if people else "judges",
                  unit="percent of labels", rows=marks[:MOST_ROWS],
                  note="in their order" if row.dimension.ordered else "")
        )  # fmt: skip
    return charts[:MOST_CHARTS]


def _label_sentences(report: Report, statistics: Mapping[str, DimensionStatistics]) -> list[str]:
    sentences = []
    for chart in _label_charts(report, statistics):
        first, *others = sorted(chart.rows, key=lambda mark: -(mark.place or 0.0))
        clear = all(mark.high is None or first.low is None or mark.high < first.low for mark in others)
        rest = f"; {others[0].name!r} follows with {others[0].text}" if others else ""
        most = "the commonest label" if clear else "probably the commonest label"
        sentences.append(f"In {chart.title}, {first.name!r} is {most} {OPINION[chart.opinion]}: {first.text}{rest}.")
    return sentences
