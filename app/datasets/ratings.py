"""Ratings by people: read from a file of their own or from columns beside the items, and checked one by one.

Long form has a row a rating. Wide form has a row an item (and rater) and a column a dimension; a file is taken as wide
where `columns` says so, or where it has no column for the dimension but columns with the dimensions' ids. A column that
seems to be a misspelt one is refused, since its ratings would be lost. An empty cell is a missing rating.

On scales of labels and preferences a cell holds the label, as the scale writes it, or its number; of a checklist the
share of its questions that are answered with yes. Of a list of candidates it holds their order (app/domain/ranking.py),
which rates all pairs of the list that are judged. Whatever else is no score on its dimension's scale raises
`DatasetError` with the file, the line (in Parquet the row), the field, the bound and the value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from dicast.app.datasets.pages import limited, opened
from dicast.app.datasets.tables import DatasetError, ItemReader, Table, quoted
from dicast.app.domain.dimension import Dimension
from dicast.app.domain.item import NOBODY_NAMED, Item, ItemSource, Rating, RatingSource
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.ranking import OrderError, Pairs, PairsOfList, PairsOfLists, preferences
from dicast.app.domain.text import excerpt
from dicast.errors import nearest

PairsOf = Callable[[str], PairsOfList | None]
"""A function from a list's id to its pairs; None if there is no such list."""


def list_of(pair: str) -> str:
    """Return the id of the list that a pair belongs to, if it is one."""
    return pair.rpartition("/")[0]


def judged_pairs(item: Item, pairs: Pairs) -> PairsOfList:
    """Return the judged pairs of a list."""
    pair_items = PairsOfLists(pairs).items(item)
    return {pair.id: (str(pair.metadata["candidate_a"]), str(pair.metadata["candidate_b"])) for pair in pair_items}


def pairs_of_lists(items: ItemSource | Iterable[Item], pairs: Pairs, rated: Collection[str]) -> PairsOf:
    """Return the judged pairs of those lists that are `rated`. The items are read once."""
    list_ids = {*rated, *map(list_of, rated)}
    every = _in_file(items) if isinstance(items, ItemSource) else items
    return {item.id: judged_pairs(item, pairs) for item in every if item.id in list_ids}.get


def _in_file(source: ItemSource) -> Iterator[Item]:
    with opened(source) as table:
        reader = ItemReader(source, table)
        for row in limited(source, table, None):
            yield reader.item(row)


ROUNDED = 0.005 + 1e-9
"""How far a share may lie from that of a whole number of questions and still mean it: it has at least two decimals."""
COLUMNS_SEEN, COLUMNS_SHOWN = 10_000, 50
"""How many names of columns are remembered of rows that may differ, and shown. Beyond, nothing is said of them."""
INLINE = "items"
"""Stands for the file in messages about ratings beside items that came with the job."""


class PlacedRating(NamedTuple):
    """A rating, and its place in the file."""

    rating: Rating
    place: str


def file_of(source: RatingSource) -> ItemSource:
    """Return the ratings' file as an item source, which can be opened."""
    assert source.path is not None
    return ItemSource(path=source.path, format=source.format)


class Rated(NamedTuple):
    """What a row's ratings are of: an item, or a list with its pairs."""

    id: str
    pairs: PairsOfList | None = None


def read_ratings(job: EvaluationJob, inline_items: Iterable[Item] | None = None) -> Iterator[PlacedRating]:
    """Yield all ratings of a job, streamed. Items that came with the job are passed if `job` itself does not hold them.
    Raises `DatasetError`."""
    source, items = job.ratings, job.items if inline_items is None else inline_items
    assert source is not None
    if source.path is None:
        yield from _inline_ratings(job, source, items)
    elif job.pairs is None:
        yield from ratings_of_file(source, job.dimensions)
    else:
        pairs_of = pairs_of_lists(items, job.pairs, _rated_ids(source))
        some = isinstance(items, ItemSource) and items.limit is not None
        yield from ratings_of_file(source, job.dimensions, pairs_of, others=some)


def ratings_of_file(
    source: RatingSource, dimensions: Iterable[Dimension], pairs_of: PairsOf | None = None, *, others: bool = False
) -> Iterator[PlacedRating]:
    """Yield the ratings in a file of their own.

    For a job that ranks lists, `pairs_of` returns their pairs; what is neither a pair nor a list is skipped if there
    may be `others`. Raises `DatasetError`.
    """
    dimensions = list(dimensions)
    with opened(file_of(source)) as table:
        columns = source.columns or _columns_by_name(source, table, dimensions)
        reader = _Reader(source, str(source.path), dimensions, columns)
        if source.columns:
            reader.check_columns(table, source.named_columns, "columns")
        if table.closed or not columns:
            reader.check_names(table.columns)
        if not columns:
            for setting in ("dimension_field", "score_field"):
                reader.check_columns(table, {getattr(source, setting)}, setting)
        reader.check_columns(table, {source.item_field}, "item_field")
        for row in table.rows(None):
            reader.see(row.fields)
            item = reader.item_id(row.fields, row.place)
            rated = Rated(item) if pairs_of is None else _of_list(item, pairs_of)
            if rated is None:
                if others:
                    continue
                raise DatasetError(reader.path, f"the item {quoted(item)} is none of the job's", place=row.place)
            ratings = (
                reader.wide(rated, row.fields, row.place) if columns else reader.long(rated, row.fields, row.place)
            )
            for rating in ratings:
                yield PlacedRating(rating, row.place)
        if not table.closed:
            reader.check_names(reader.seen)
            reader.check_seen(source.named_columns, "columns")


def _of_list(item: str, pairs_of: PairsOf) -> Rated | None:
    pairs = pairs_of(item)
    if pairs is not None:
        return Rated(item, pairs)
    return Rated(item) if item in (pairs_of(list_of(item)) or ()) else None


def _rated_ids(source: RatingSource) -> set[str]:
    with opened(file_of(source)) as table:
        reader = _Reader(source, str(source.path), (), {})
        reader.check_columns(table, {source.item_field}, "item_field")
        return {reader.item_id(row.fields, row.place) for row in table.rows(None)}


def _inline_ratings(
    job: EvaluationJob, source: RatingSource, items: ItemSource | Iterable[Item]
) -> Iterator[PlacedRating]:  # fmt: skip
    """Yield the ratings in the items' rows, or in the metadata of items that came with the job."""

    def rated_of(item: Item) -> Rated:
        return Rated(item.id) if job.pairs is None else Rated(item.id, judged_pairs(item, job.pairs))

    if not isinstance(items, ItemSource):
        reader = _Reader(source, INLINE, job.dimensions, source.columns)
        for item in items:
            reader.see(item.metadata)
            place = f"item {quoted(item.id)}"
            for rating in reader.wide(rated_of(item), item.metadata, place):
                yield PlacedRating(rating, place)
        reader.check_seen(source.named_columns, "ratings.columns")
        return
    with opened(items) as table:
        item_of = ItemReader(items, table).item
        reader = _Reader(source, items.path, job.dimensions, source.columns)
        reader.check_columns(table, source.named_columns, "ratings.columns")
        for row in limited(items, table, None):
            reader.see(row.fields)
            for rating in reader.wide(rated_of(item_of(row)), row.fields, row.place):
                yield PlacedRating(rating, row.place)
        if not table.closed and items.limit is None:
            reader.check_seen(source.named_columns, "ratings.columns")


def _columns_by_name(source: RatingSource, table: Table, dimensions: list[Dimension]) -> dict[str, str]:
    """Return the columns that are named like dimensions, by dimension; none if the file is in long form. Where rows may
    differ, later ones may have columns that the first one lacks."""
    ids = [dimension.id for dimension in dimensions]
    if source.dimension_field in table.columns or not any(name in table.columns for name in ids):
        return {}
    return {name: name for name in ids if name in table.columns or not table.closed}


class _Reader:
    """Makes ratings of rows, by the names in the job's source. `path` is shown in messages."""

    def __init__(
        self, source: RatingSource, path: str, dimensions: Iterable[Dimension],
        columns: Mapping[str, str | Mapping[str, str]],
    ) -> None:  # fmt: skip
        self._source, self.path = source, path
        self._scales = {dimension.id: dimension.scale for dimension in dimensions}
        self._columns = columns
        self.seen: set[str] = set()

    def see(self, fields: Mapping[str, Any]) -> None:
        """Remember the names of a row's columns."""
        if len(self.seen) < COLUMNS_SEEN:
            self.seen.update(fields)

    def check_seen(self, names: set[str], setting: str) -> None:
        """Raise `DatasetError` for a named column that no row has had, if there were rows."""
        missing = sorted(names - self.seen)
        if missing and self.seen and len(self.seen) < COLUMNS_SEEN:
            column_names = ", ".join(quoted(column) for column in sorted(self.seen)[:COLUMNS_SHOWN])
            near = nearest(missing[0], self.seen)
            hint = f"did you mean {quoted(near)}?" if near is not None else f"there are {column_names}"
            raise DatasetError(self.path, f"{setting}: no row has a column {quoted(missing[0])}; {hint}")

    def check_names(self, columns: Collection[str]) -> None:
        """Raise `DatasetError` for a column that seems to be a misspelt one, if there is none of the right name: of a
        dimension, in a sheet with a column per dimension that does not name them, the rater's or the probability's."""
        source = self._source
        optional = {source.rater_field: "rater_field", source.probability_field: "probability_field"}
        fields = {source.item_field, source.dimension_field, source.score_field, *optional, *source.named_columns}
        by_name = source.dimension_field not in columns and not source.columns
        wanted = [name for name in (*(self._scales if by_name else ()), *optional) if name not in columns]
        for column in columns:
            near = nearest(column, wanted) if column not in fields and column not in self._scales else None
            if near in optional:
                raise DatasetError(
                    self.path, f"{optional[near]}: no column {quoted(near)}; did you mean {quoted(column)}? "
                    f"Then write `{optional[near]}: {excerpt(column, 60)}`; if not, give that column another name",
                )  # fmt: skip
            if near is not None:
                raise DatasetError(
                    self.path, f"unknown dimension {quoted(column)}; did you mean {quoted(near)}? If it is another "
                    "column, name those with ratings in `columns`",
                )  # fmt: skip

    def check_columns(self, table: Table, names: set[str], setting: str) -> None:
        """Raise `DatasetError` if a named column is missing. Rows of JSONL may differ, so there it is raised only if
        the first row lacks all of them."""
        missing = sorted(names - set(table.columns))
        if missing and (table.closed or len(missing) == len(names)):
            columns = ", ".join(quoted(column) for column in table.columns) or "none"
            raise DatasetError(self.path, f"{setting}: no column {quoted(missing[0])}; the columns are {columns}")

    def item_id(self, fields: Mapping[str, Any], place: str) -> str:
        """Return the item's id in a row."""
        return self._name(fields, self._source.item_field, place)

    def long(self, rated: Rated, fields: Mapping[str, Any], place: str) -> Iterator[Rating]:
        """Yield the ratings of a row: one, none if its score is empty, or one for each pair of a list."""
        source = self._source
        dimension = fields.get(source.dimension_field)
        if dimension not in self._scales:
            near = nearest(str(dimension), self._scales)
            hint = f"did you mean {quoted(near)}?" if near else f"there are {', '.join(map(quoted, self._scales))}"
            raise self._wrong(place, source.dimension_field, f"is no dimension of the job ({hint})", dimension)
        value = fields.get(source.score_field)
        for item, score in self._scores(rated, value, source.score_field, str(dimension), place):
            yield Rating(item, str(dimension), self._rater(fields, place), score, self._probability(fields, place))

    def wide(self, rated: Rated, fields: Mapping[str, Any], place: str) -> Iterator[Rating]:
        """Yield the ratings of a row with a column per dimension, or per dimension and rater."""
        for dimension, columns in self._columns.items():
            for rater, column in [("", columns)] if isinstance(columns, str) else columns.items():
                for item, score in self._scores(rated, fields.get(column), column, dimension, place):
                    rater_name = rater or self._rater(fields, place)
                    yield Rating(item, dimension, rater_name, score, self._probability(fields, place))

    def _scores(
        self, rated: Rated, value: Any, field: str, dimension: str, place: str
    ) -> Iterator[tuple[str, float]]:  # fmt: skip
        """Yield the scores in a cell, by item; none if it is empty."""
        if rated.pairs is None:
            score = self._score(value, field, dimension, place)
            if score is not None:
                yield rated.id, score
        elif value is not None and not (isinstance(value, str) and not value.strip()):
            if self._scales[dimension].preference == "strength":
                wrong = f"an order of a list tells no strength, as {quoted(dimension)} asks for: rate its pairs"
                raise self._wrong(place, field, wrong, value)
            try:
                yield from ((pair, float(sign)) for pair, sign in preferences(value, rated.pairs))
            except OrderError as error:
                raise self._wrong(place, field, str(error), value) from None

    def _rater(self, fields: Mapping[str, Any], place: str) -> str:
        field = self._source.rater_field
        if field not in fields and field == RatingSource.model_fields["rater_field"].default:
            return NOBODY_NAMED
        return self._name(fields, field, place)

    def _name(self, fields: Mapping[str, Any], field: str, place: str) -> str:
        value = fields.get(field)
        if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
            raise self._wrong(place, field, "must be text, not blank, or a whole number", value)
        return str(value).strip()

    def _probability(self, fields: Mapping[str, Any], place: str) -> float | None:
        field = self._source.probability_field
        number = _number(fields.get(field))
        if number is None:
            return None
        if not 0 < number <= 1:  # NaN is not, either
            raise self._wrong(place, field, "must be above 0 and at most 1", fields.get(field))
        return number

    def _score(self, value: Any, field: str, dimension: str, place: str) -> float | None:
        scale, whole = self._scales[dimension], not self._source.fractions
        if isinstance(value, str) and scale.options:
            score = scale.score_of(value.strip())
            if score is not None:
                return float(score)
        number = _number(value)
        if number is None:
            return None
        if scale.checklist:
            return self._of_share(number, value, field, dimension, place)
        whole = whole or scale.nominal
        kind = "a whole number" if whole else "a number"
        range = f"{kind} from {scale.min} to {scale.max}"
        labels = f"one of {', '.join(scale.options)}, or " if scale.options else ""
        bound = f"must be {labels}{range} (the scale of {quoted(dimension)})"
        if math.isnan(number):
            raise self._wrong(place, field, f"{bound}; leave the cell of a missing rating empty", value)
        if not scale.min <= number <= scale.max:
            raise self._wrong(place, field, bound, value)
        if whole and number != int(number):
            more = "" if scale.nominal else "; ratings: {fractions: true} takes what lies between"
            raise self._wrong(place, field, f"{bound}{more}", value)
        return number

    def _of_share(self, share: float, value: Any, field: str, dimension: str, place: str) -> float:
        """Convert a checklist's share of yes to their number: 0.33 of 3 questions is 1."""
        questions = self._scales[dimension].max
        bound = f"must be the share of yes, 0 to 1, of the {questions} questions of {quoted(dimension)}"
        if not 0 <= share <= 1:  # NaN is not, either
            raise self._wrong(place, field, bound, value)
        score = share * questions
        if abs(score - round(score)) <= ROUNDED * questions:
            return float(round(score))
        if not self._source.fractions:
            more = "; ratings: {fractions: true} takes what lies between two numbers of them"
            raise self._wrong(place, field, f"{bound}{more}", value)
        return score

    def _wrong(self, place: str, field: str, wrong: str, value: object) -> DatasetError:
        return DatasetError(self.path, f"{field}: {wrong}, got {quoted(value)}", place=place)


def _number(value: Any) -> float | None:
    """Return a cell as a number: None for an empty cell, NaN for what is no number."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan
