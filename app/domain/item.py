"""What is judged: items, and the files that hold them or what people said of them."""

from __future__ import annotations

from collections.abc import Set
from typing import Literal, Self

from pydantic import Field, model_validator

from dicast.app.domain.fields import Id, Metadata, Strict, Text


class Item(Strict):
    """One text to judge."""

    id: Id
    text: Text = Field(description="the output that is judged")
    prompt: str | None = Field(default=None, description="what the output answers, if that matters")
    reference: str | None = Field(default=None, description="an answer known to be good, if there is one")
    metadata: Metadata = Field(default_factory=dict)

    @property
    def text_bytes(self) -> int:
        """Of its texts in UTF-8."""
        texts = (self.text, self.prompt, self.reference)
        return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts if text)

    def without(self, names: Set[str]) -> Self:
        """The item without this metadata."""
        if not names or names.isdisjoint(self.metadata):
            return self
        return self.model_copy(update={"metadata": {k: v for k, v in self.metadata.items() if k not in names}})


class ItemSource(Strict):
    """Items that lie in a file, which every planning worker must be able to read."""

    path: str = Field(min_length=1)
    format: Literal["jsonl", "csv", "tsv", "parquet"] | None = Field(default=None, description="None: by its ending")
    id_field: str = "id"
    text_field: str = "text"
    prompt_field: str | None = "prompt"
    reference_field: str | None = "reference"
    limit: int | None = Field(default=None, ge=1, description="judge at most this many items")


class RatingSource(Strict):
    """Ratings by people: in a file of their own, or in columns beside the items. No judge is shown any of them.

    Long form has a row a rating, with the columns named by `item_field`, `dimension_field`, `rater_field` and
    `score_field`. In wide form `columns` names each dimension's column, or one column for each rater of a dimension.
    """

    path: str | None = Field(default=None, min_length=1, description="None: the columns stand beside the items")
    format: Literal["jsonl", "csv", "tsv", "parquet"] | None = Field(default=None, description="None: by its ending")
    item_field: str = "item_id"
    dimension_field: str = "dimension"
    rater_field: str = "rater"
    score_field: str = "score"
    probability_field: str = Field(default="probability", description="how likely the item was to be rated, if known")
    columns: dict[str, str | dict[str, str]] = Field(
        default_factory=dict, description="dimension -> its column, or rater -> column"
    )
    fractions: bool = Field(default=False, description="scores may lie between the whole numbers of the scale")

    @property
    def named_columns(self) -> set[str]:
        """All columns that `columns` names."""
        return {c for value in self.columns.values() for c in ([value] if isinstance(value, str) else value.values())}

    @model_validator(mode="after")
    def _somewhere(self) -> Self:
        if self.path is None and not self.columns:
            raise ValueError("name a file (path), or the columns beside the items (columns)")
        if any(not value for value in self.columns.values()):
            raise ValueError("columns: each dimension needs a column, or a column for each rater")
        return self
