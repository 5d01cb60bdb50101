"""A finished job's opinions in pages, read from its Parquet file by DuckDB, read-only and in bounded memory.

For each job that is viewed, and each judge that it is filtered by, a table with one row an item is built once (in a
tenth of a second for a million opinions) and cached while there is room. Search results are cached in the same way.
All other queries read the file itself.
"""
# ruff: noqa: S608  (statements are made of names of our own; what others give is a parameter, or quoted)

from __future__ import annotations

import re
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import duckdb

from dicast.app.domain.report import Report
from dicast.errors import DicastError, alternatives

PARQUET = "opinions.parquet"
MEMORY = "160MB"
THREADS = 2
ROWS_KEPT = 1_500_000
"""The most rows in all tables together; the least recently used table is dropped first."""
SLOW_TO_FIND = re.compile(r"[ksKS]|[^\x00-\x7f]")
"""Letters that may have more than two cases, as RE2 sees them."""
OPINIONS_MAX = 2000
"""The most opinions of one item that are returned at once."""
FACET_VALUES_MAX = 50
POINTS_MAX = 3000
EXCERPT_CHARS = 240
EXCERPTS_MAX = 200_000
"""The most items of a job whose texts' beginnings are cached."""

Texts = Callable[[], Iterable[tuple[str, str]]]
"""Yields id and text of all items of a job."""
Sort = Literal["place", "item", "overall", "disagreement", "failed", "score", "spread"]


class NoSuchItem(DicastError, LookupError):
    """The job has no such item, dimension or judge."""

    problem = "not-found"


@dataclass(frozen=True, slots=True)
class ItemQuery:
    """Selects and orders the items to be listed.

    Items match if their id (or, `within` arguments, one of their arguments) contains `search`, ignoring case, if their
    score in `dimension` is from `least` to `most`, and their judges' disagreement from `least_spread` to `most_spread`,
    if their kept metadata have all values of `metadata` (as texts), and, with `failed`, if one of their units has
    failed. An item's id must be in each set of `matches`. With a `judge`, only the opinions of that judge count. The
    sort keys `score` and `spread` refer to `dimension`.
    """

    sort: Sort = "place"
    descending: bool = False
    search: str = ""
    within: Literal["ids", "arguments"] = "ids"
    dimension: str | None = None
    least: float | None = None
    most: float | None = None
    least_spread: float | None = None
    most_spread: float | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    matches: Sequence[frozenset[str]] = ()
    failed: bool = False
    judge: str | None = None
    limit: int = 50
    offset: int = 0


@dataclass(frozen=True, slots=True)
class ItemScore:
    """An item in one dimension: the mean of its judges' scores, and their spread (the standard deviation between
    judges)."""

    mean: float | None
    spread: float | None
    n: int


@dataclass(frozen=True, slots=True)
class ItemRow:
    """An item. `overall` is its weighted score from 0 to 1, `disagreement` its judges' spread as a share of the
    scale, averaged over the dimensions; labels without an order enter neither. `failed` counts units without a score,
    and `place` is the position of its first opinion in the file. `metadata` are those that the job keeps, as texts."""

    id: str
    place: int
    overall: float | None
    disagreement: float | None
    failed: int
    scores: list[ItemScore]
    metadata: dict[str, str]


@dataclass(frozen=True, slots=True)
class ItemRows:
    """A page of items, and the number of items on all pages."""

    items: list[ItemRow]
    total: int


@dataclass(frozen=True, slots=True)
class FacetValue:
    """One value of a kept metadata, as text, and the number of items that have it."""

    value: str
    items: int


@dataclass(frozen=True, slots=True)
class Facets:
    """What a job's items can be filtered by: the commonest values of each kept metadata, and the number of items with a
    failed unit."""

    metadata: dict[str, list[FacetValue]]
    failed: int
    items: int


@dataclass(frozen=True, slots=True)
class JudgeScores:
    """Counts of how often a judge gave each score in a dimension, an expected score at the nearest whole number;
    `failed` counts its units without a score."""

    judge: str
    dimension: str
    counts: dict[int, int]
    failed: int


@dataclass(slots=True)
class _Tables:
    """The cached tables: name and number of rows by what they contain."""

    by_key: OrderedDict[tuple[Any, ...], tuple[str, int]] = field(default_factory=OrderedDict)
    created: int = 0

    @property
    def rows(self) -> int:
        return sum(rows for _, rows in self.by_key.values())


class Browser:
    """Answers queries about finished jobs' opinions; safe for any number of threads. It is only a cache: a new
    browser gives the same answers, more slowly at first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._spill: tempfile.TemporaryDirectory[str] | None = None
        self._tables = _Tables()

    def items(self, folder: Path, report: Report, query: ItemQuery) -> ItemRows:
        """Return a page of the job's items. Raises `NoSuchItem` for a dimension or judge that the job does not have,
        OSError."""
        names = [dimension.id for dimension in report.dimensions]
        for name, choices in ((query.dimension, names), (query.judge, [agent.name for agent in report.agents])):
            if name is not None and name not in choices:
                raise NoSuchItem(f"{name!r} is none of the job's{alternatives(name, choices[:20])}")
        cursor = self._cursor()
        try:
            table = self._items_table(cursor, folder, report, query.judge)
            at = names.index(query.dimension) if query.dimension is not None else None
            through = query.search and query.within == "arguments"
            matches = self._matching_items(cursor, folder, query.search, query.judge) if through else None
            metadata_names = _metadata_names(cursor, folder, report)
            for name in query.metadata:
                if name not in metadata_names:
                    raise NoSuchItem(f"the job keeps no metadata {name!r}{alternatives(name, metadata_names)}")
            where, parameters = _conditions(query, at, matches, metadata_names)
            order = _order(query, at)
            rows = cursor.execute(
                f"SELECT * FROM {table} {where} ORDER BY {order} LIMIT ? OFFSET ?",
                [*parameters, query.limit, query.offset],
            ).fetchall()
            total = cursor.execute(f"SELECT count(*) FROM {table} {where}", parameters).fetchall()[0][0]
        finally:
            cursor.close()
        return ItemRows([_row(row, len(names), metadata_names) for row in rows], total)

    def facets(self, folder: Path, report: Report) -> Facets:
        """Return what the job's items can be filtered by. Raises OSError."""
        cursor = self._cursor()
        try:
            table = self._items_table(cursor, folder, report, None)
            metadata = {
                name: [
                    FacetValue(value, count)
                    for value, count in cursor.execute(
                        f"SELECT g{at}, count(*) AS n FROM {table} WHERE g{at} IS NOT NULL GROUP BY ALL "
                        f"ORDER BY n DESC, g{at} LIMIT {FACET_VALUES_MAX}"
                    ).fetchall()
                ]
                for at, name in enumerate(_metadata_names(cursor, folder, report))
            }
            failed, items = cursor.execute(f"SELECT count(*) FILTER (failed > 0), count(*) FROM {table}").fetchall()[0]
        finally:
            cursor.close()
        return Facets(metadata, failed, items)

    def points(self, folder: Path, report: Report, group: str | None) -> list[tuple[str, float, float, str | None]]:
        """Return id, overall score, disagreement and the value of a kept metadata for the items that have both
        numbers, in the order of their opinions, at most `POINTS_MAX`: of more, each n-th. Raises OSError."""
        cursor = self._cursor()
        try:
            table = self._items_table(cursor, folder, report, None)
            metadata_names = _metadata_names(cursor, folder, report)
            column = f"g{metadata_names.index(group)}" if group in metadata_names else "NULL::VARCHAR"
            both = "overall IS NOT NULL AND disagreement IS NOT NULL"
            total = cursor.execute(f"SELECT count(*) FROM {table} WHERE {both}").fetchall()[0][0]
            return cursor.execute(
                f"SELECT item_id, overall, disagreement, {column} FROM (SELECT *, row_number() OVER (ORDER BY place) "
                f"AS nth FROM {table} WHERE {both}) WHERE (nth - 1) % ? = 0 ORDER BY nth",
                [max(1, -(-total // POINTS_MAX))],
            ).fetchall()
        finally:
            cursor.close()

    def excerpts(
        self, folder: Path, texts: Callable[[], Iterable[tuple[str, str]]], ids: Sequence[str]
    ) -> dict[str, str]:
        """Return the beginnings of these items' texts. `texts` is called once for each version of the
        results. Raises OSError, and what `texts` raises."""
        cursor = self._cursor()
        try:

            def beginnings() -> list[Any]:
                pairs = [(id, " ".join(text[: 4 * EXCERPT_CHARS].split())[:EXCERPT_CHARS])
                         for id, text in islice(texts(), EXCERPTS_MAX)]  # fmt: skip
                return [[id for id, _ in pairs], [excerpt for _, excerpt in pairs]]

            table = self._cached_table(
                cursor, (*_file_identity(folder), "excerpts"), lambda: "SELECT unnest(?) AS id, unnest(?) AS excerpt",
                beginnings,
            )  # fmt: skip
            return dict(cursor.execute(f"SELECT * FROM {table} WHERE id IN (SELECT unnest(?))", [list(ids)]).fetchall())
        finally:
            cursor.close()

    def found_in_texts(self, folder: Path, texts: Texts, search: str) -> frozenset[str]:
        """Return the ids of the items whose texts contain `search`, ignoring case. Raises OSError, and
        what `texts` raises."""
        lowered = search.casefold()
        cursor = self._cursor()
        try:
            table = self._cached_table(
                cursor, (*_file_identity(folder), "texts", lowered), lambda: "SELECT unnest(?::VARCHAR[]) AS id",
                lambda: [[id for id, text in texts() if lowered in text.casefold()]],
            )  # fmt: skip
            return frozenset(id for (id,) in cursor.execute(f"SELECT id FROM {table}").fetchall())
        finally:
            cursor.close()

    def opinions(self, folder: Path, item: str) -> tuple[list[dict[str, Any]], bool]:
        """Return the opinions of an item, in the order of their units, and whether there are more than
        `OPINIONS_MAX`. Raises `NoSuchItem`, OSError."""
        cursor = self._cursor()
        try:
            cursor.execute(
                f"SELECT * FROM {_source(folder)} WHERE item_id = ? {_no_probes(cursor, folder)} LIMIT ?",
                [item, OPINIONS_MAX + 1],
            )
            names = [column[0] for column in cursor.description or []]
            rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        finally:
            cursor.close()
        if not rows:
            raise NoSuchItem(f"the job has no opinion of an item {item[:200]!r}")
        return rows[:OPINIONS_MAX], len(rows) > OPINIONS_MAX

    def scores(self, folder: Path) -> list[JudgeScores]:
        """Return how each judge's scores are distributed in each dimension. Raises OSError."""
        cursor = self._cursor()
        try:
            rows = cursor.execute(
                "SELECT judge, criterion_id, CAST(floor(score + 0.5) AS BIGINT) AS level, count(*) "
                f"FROM {_source(folder)} WHERE true {_no_probes(cursor, folder)} GROUP BY ALL ORDER BY ALL"
            ).fetchall()
        finally:
            cursor.close()
        tallies: dict[tuple[str, str], JudgeScores] = {}
        for judge, dimension, score, count in rows:
            tally = tallies.get((judge, dimension)) or JudgeScores(judge, dimension, {}, 0)
            if score is None:
                tally = JudgeScores(judge, dimension, tally.counts, count)
            else:
                tally.counts[score] = count
            tallies[judge, dimension] = tally
        return list(tallies.values())

    def mean_scores(self, folder: Path, items: Sequence[str]) -> list[tuple[str, str, str, float]]:
        """Return item, dimension, judge and mean score for these items, where there is a score. Raises OSError."""
        cursor = self._cursor()
        try:
            return cursor.execute(
                f"SELECT item_id, criterion_id, judge, avg(score) FROM {_source(folder)} "
                f"WHERE item_id IN (SELECT unnest(?)) AND score IS NOT NULL {_no_probes(cursor, folder)} GROUP BY ALL "
                "ORDER BY ALL",
                [list(items)],
            ).fetchall()
        finally:
            cursor.close()

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        with self._lock:
            if self._connection is None:
                self._spill = tempfile.TemporaryDirectory(prefix="dicast-browse-")
                self._connection = duckdb.connect(
                    ":memory:",
                    config={
                        "memory_limit": MEMORY, "threads": THREADS, "temp_directory": self._spill.name,
                        "autoinstall_known_extensions": False, "autoload_known_extensions": False,
                        "lock_configuration": True,
                    },
                )  # fmt: skip
            return self._connection.cursor()

    def _items_table(self, cursor: duckdb.DuckDBPyConnection, folder: Path, report: Report, judge: str | None) -> str:
        """Return the name of the table of a job's items, which is built if necessary."""
        return self._cached_table(
            cursor, (*_file_identity(folder), "items", judge), lambda: _select_items(cursor, folder, report, judge),
            lambda: [] if judge is None else [judge],
        )  # fmt: skip

    def _matching_items(self, cursor: duckdb.DuckDBPyConnection, folder: Path, text: str, judge: str | None) -> str:
        """Return the name of the table of the items with an argument that contains this text. All arguments are read
        to build it."""
        only = _no_probes(cursor, folder) + ("" if judge is None else " AND judge = ?")
        holds, parameters = _holding(text)
        select = f"SELECT DISTINCT item_id FROM {_source(folder)} WHERE {holds} {only}"
        parameters += [] if judge is None else [judge]
        key = (*_file_identity(folder), "found", text, judge)
        return self._cached_table(cursor, key, lambda: select, lambda: parameters)

    def _cached_table(
        self, cursor: duckdb.DuckDBPyConnection, key: tuple[Any, ...], select: Callable[[], str],
        parameters: Callable[[], list[Any]],
    ) -> str:  # fmt: skip
        """Return the name of the cached table with this key, which is built if necessary."""
        with self._lock:
            if key not in self._tables.by_key:
                self._tables.created += 1
                name = f"kept_{self._tables.created}"
                cursor.execute(f"CREATE TABLE {name} AS {select()}", parameters())
                rows = cursor.execute(f"SELECT count(*) FROM {name}").fetchall()[0][0]
                self._tables.by_key[key] = name, rows + 1
                while len(self._tables.by_key) > 1 and self._tables.rows > ROWS_KEPT:
                    _, (dropped, _) = self._tables.by_key.popitem(last=False)
                    cursor.execute(f"DROP TABLE {dropped}")
            self._tables.by_key.move_to_end(key)
            return self._tables.by_key[key][0]


def _holding(text: str) -> tuple[str, list[str]]:
    """Return the SQL condition that an argument contains a text, ignoring case, and its parameters.

    RE2 skips quickly to a prefix whose letters have exactly two cases each, which k, s and most letters beyond ASCII
    do not have. Where such a letter comes early in the text, the longest stretch without one is searched for first,
    and only arguments that contain it are lower-cased: that halves the time.
    """
    stretch = max(SLOW_TO_FIND.split(text), key=len)
    if stretch and text.startswith(stretch):
        return "regexp_matches(argument, ?)", [_pattern(text)]
    return (
        "CASE WHEN regexp_matches(argument, ?) THEN contains(lower(argument), lower(?)) ELSE false END",
        [_pattern(stretch), text],
    )


def _pattern(text: str) -> str:
    return f"(?i){''.join(map(_literal, text))}"


def _literal(char: str) -> str:
    return char if char.isalnum() or not char.isascii() else f"\\x{ord(char):02x}"


def _file_identity(folder: Path) -> tuple[Any, ...]:
    """Return what identifies this version of the file; it differs once the job has been judged anew. Raises OSError."""
    stat = (folder / PARQUET).stat()
    return str(folder), stat.st_ino, stat.st_mtime_ns, stat.st_size


def _select_items(cursor: duckdb.DuckDBPyConnection, folder: Path, report: Report, judge: str | None) -> str:
    source = _source(folder)
    only = _no_probes(cursor, folder) + ("" if judge is None else " AND judge = ?")
    columns, positions, spreads = [], [], []
    for at, dimension in enumerate(report.dimensions):
        condition = f"FILTER (criterion_id = {_text(dimension.id)})"
        columns += [
            f"avg(mean) {condition} AS m{at}",
            f"stddev_pop(mean) {condition} AS s{at}",
            f"sum(n) {condition} AS n{at}",
        ]
        if not dimension.nominal:
            width = max(1, dimension.scale_max - dimension.scale_min)
            positions.append((f"(m{at} - {dimension.scale_min}) / {width}", dimension.weight))
            spreads.append(f"CASE WHEN j{at} > 1 THEN s{at} / {width} END")
        columns.append(f"count(mean) {condition} AS j{at}")
    outputs = ", ".join(
        f"m{at}, CASE WHEN j{at} > 1 THEN s{at} END AS s{at}, coalesce(n{at}, 0)::BIGINT AS n{at}"
        for at in range(len(report.dimensions))
    )
    names = _metadata_names(cursor, folder, report)
    quoted = [f'"metadata.{name.replace(chr(34), 2 * chr(34))}"' for name in names]
    groups = "".join(f", any_value(g{at}) AS g{at}" for at in range(len(quoted)))
    any_group = "".join(f", any_value({column}) AS g{at}" for at, column in enumerate(quoted))
    each_group = "".join(f", {column} AS g{at}" for at, column in enumerate(quoted))
    cells = (  # the replicates of a judge count as one opinion
        "SELECT item_id, criterion_id, judge, min(file_row_number) AS place, avg(score) AS mean, count(score) AS n, "
        f"count(*) - count(score) AS failed{any_group} FROM {source} WHERE true {only} GROUP BY ALL"
        if _has_replicates(cursor, folder)
        else "SELECT item_id, criterion_id, judge, file_row_number AS place, score::DOUBLE AS mean, "
        f"(score IS NOT NULL)::INTEGER AS n, (score IS NULL)::INTEGER AS failed{each_group} "
        f"FROM {source} WHERE true {only}"
    )
    return (
        f"SELECT item_id, place, {_weighted(positions)} AS overall, "
        f"list_avg([{', '.join(spreads) or 'NULL::DOUBLE'}]) AS disagreement, failed, {outputs}"
        f"{''.join(f', g{at}' for at in range(len(quoted)))} FROM ("
        f"SELECT item_id, min(place) AS place, sum(failed)::BIGINT AS failed, {', '.join(columns)}{groups} "
        f"FROM ({cells}) GROUP BY item_id)"
    )


def _has_replicates(cursor: duckdb.DuckDBPyConnection, folder: Path) -> bool:
    """Return whether a judge has more than one opinion of an item and dimension."""
    highest = cursor.execute(f"SELECT max(replicate) FROM {_source(folder)}").fetchall()[0][0]
    return bool(highest)


def _weighted(positions: Sequence[tuple[str, float]]) -> str:
    if not positions:
        return "NULL::DOUBLE"
    total = " + ".join(f"coalesce({at} * {weight!r}, 0)" for at, weight in positions)
    weights = " + ".join(f"CASE WHEN {at} IS NULL THEN 0 ELSE {weight!r} END" for at, weight in positions)
    return f"({total}) / nullif({weights}, 0)"


def _metadata_names(cursor: duckdb.DuckDBPyConnection, folder: Path, report: Report) -> list[str]:
    """Return the names of the metadata that the file has a column for."""
    columns = cursor.execute(f"DESCRIBE SELECT * FROM {_source(folder)}").fetchall()
    there = {column[0] for column in columns}
    return [name for name in dict.fromkeys(report.keep) if f"metadata.{name}" in there]


def _conditions(
    query: ItemQuery, at: int | None, matches: str | None, metadata_names: Sequence[str]
) -> tuple[str, list[Any]]:  # fmt: skip
    """Return the WHERE clause and its parameters. `matches` names the table of the items that a search in the arguments
    matched, `metadata_names` the metadata in the order of their columns."""
    parts, parameters = [], list[Any]()
    if matches is not None:
        parts.append(f"item_id IN (SELECT item_id FROM {matches})")
    elif query.search:
        parts.append("contains(lower(item_id), lower(?))")
        parameters.append(query.search)
    for bound, sign in ((query.least, ">="), (query.most, "<=")):
        if bound is not None:
            parts.append(f"{'overall' if at is None else f'm{at}'} {sign} ?")
            parameters.append(bound)
    for bound, sign in ((query.least_spread, ">="), (query.most_spread, "<=")):
        if bound is not None:
            parts.append(f"disagreement {sign} ?")
            parameters.append(bound)
    for name, value in query.metadata.items():
        parts.append(f"g{metadata_names.index(name)} = ?")
        parameters.append(value)
    for ids in query.matches:
        parts.append("item_id IN (SELECT unnest(?::VARCHAR[]))")
        parameters.append(sorted(ids))
    if query.failed:
        parts.append("failed > 0")
    return (f"WHERE {' AND '.join(parts)}" if parts else ""), parameters


def _order(query: ItemQuery, at: int | None) -> str:
    fallback = "overall" if query.sort == "score" else "disagreement"
    columns = {
        "place": "place", "item": "item_id", "overall": "overall", "disagreement": "disagreement", "failed": "failed",
        "score": fallback if at is None else f"m{at}", "spread": fallback if at is None else f"s{at}",
    }  # fmt: skip
    return f"{columns[query.sort]} {'DESC' if query.descending else 'ASC'} NULLS LAST, place"


def _row(row: Sequence[Any], dimensions: int, metadata_names: Sequence[str]) -> ItemRow:
    id, place, overall, disagreement, failed, *rest = row
    scores = [ItemScore(*rest[3 * at : 3 * at + 3]) for at in range(dimensions)]
    metadata = {
        name: text for name, text in zip(metadata_names, rest[3 * dimensions :], strict=True) if text is not None
    }  # fmt: skip
    return ItemRow(id, place, overall, disagreement, failed, scores, metadata)


def _source(folder: Path) -> str:
    """Return the file as a DuckDB table function, with all glob characters of its path escaped."""
    path = "".join(f"[{char}]" if char in "*?[" else char for char in str(folder / PARQUET))
    return f"read_parquet({_text(path)}, file_row_number = true)"


def _no_probes(cursor: duckdb.DuckDBPyConnection, folder: Path) -> str:
    """Return the condition that excludes opinions on variants of items (probes), if the file has any."""
    columns = cursor.execute(f"DESCRIBE SELECT * FROM {_source(folder)}").fetchall()
    return "AND probe IS NULL" if any(column[0] == "probe" for column in columns) else ""


def _text(value: str) -> str:
    """Return a text as an SQL string literal."""
    return "'" + value.replace("'", "''") + "'"
