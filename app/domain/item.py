"""What is judged: items, the messages of a conversation, and the files that hold items or people's ratings of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, StringConstraints, model_validator
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import to_json

from dicast.app.domain.dimension import MAX_CRITERIA, Criterion, check_criteria
from dicast.app.domain.image import MAX_IMAGES, Image
from dicast.app.domain.text import MAX_ID_LENGTH, Id, Metadata, Strict, Text

MAX_MESSAGES = 1000
MAX_TOOL_CALLS = 100
MAX_NAME_CHARS = 200

ROLES = ("system", "developer", "user", "assistant", "tool")
"""Roles that are shown to a judge by name; any other role is quoted."""
ASKING_ROLES = frozenset({"system", "developer", "user", "human", "tool", "function"})
"""Roles whose messages are never answers."""


def _join_parts(content: Any) -> Any:
    """Join a list of parts, as APIs write it, into one text; its images belong to the turn."""
    if not isinstance(content, list):
        return content
    text_parts = [part for part in content if _image_of_part(part) is None]
    for part in text_parts:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ValueError(
                "must be a text, or a list of {type: text, text: ...} and {type: image_url, image_url: {url: ...}}"
            )
    return "\n".join(part["text"] for part in text_parts)


def _image_of_part(part: Any) -> dict[str, Any] | None:
    """Return the image that a part is, in OpenAI's or Anthropic's form; None if it is no image."""
    if not isinstance(part, dict):
        return None
    image_url = part.get("image_url") if part.get("type") == "image_url" else None
    if isinstance(image_url, str):
        return {"image": image_url}
    if isinstance(image_url, dict) and image_url.keys() <= {"url", "detail"}:
        return {("image" if name == "url" else name): value for name, value in image_url.items()}
    source = part.get("source") if part.get("type") == "image" else None
    if isinstance(source, dict) and source.get("type") == "base64":
        return {"image": f"data:{source.get('media_type')};base64,{source.get('data')}"}
    return {"image": source.get("url")} if isinstance(source, dict) and source.get("type") == "url" else None


def _writable(calls: list[JsonValue]) -> list[JsonValue]:
    """Reject what is nested too deeply, which would otherwise fail only when the job is stored."""
    try:
        to_json(calls)
    except ValueError as error:
        raise ValueError(f"cannot be written as JSON: {error}") from None
    return calls


Name = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME_CHARS)]


class Turn(Strict):
    """One message of a conversation that is judged. Role and name are untrusted data, as the texts are."""

    role: Name
    content: Annotated[str | None, BeforeValidator(_join_parts)] = None
    name: Name | None = None
    tool_calls: Annotated[list[JsonValue] | None, AfterValidator(_writable)] = Field(
        default=None, max_length=MAX_TOOL_CALLS
    )
    tool_call_id: Name | None = None
    images: list[Image] | None = Field(default=None, min_length=1, max_length=MAX_IMAGES)

    @model_validator(mode="before")
    @classmethod
    def _with_images(cls, data: Any) -> Any:
        """Move images among the parts of the content into `images`."""
        content = data.get("content") if isinstance(data, dict) else None
        part_images = (
            [image for part in content if (image := _image_of_part(part))] if isinstance(content, list) else []
        )
        return {**data, "images": [*(data.get("images") or ()), *part_images]} if part_images else data

    @property
    def calls(self) -> str:
        """The tool calls as text; '' without any."""
        return json.dumps(self.tool_calls, ensure_ascii=False, indent=1) if self.tool_calls else ""

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts of the turn that a judge reads, without empty ones."""
        described = (image.description for image in self.images or ())
        parts = (self.role, self.name, self.content, self.calls, self.tool_call_id, *described)
        return tuple(text for text in parts if text)

    @property
    def says_nothing(self) -> bool:
        """Whether the turn has neither text, tool calls nor images."""
        return not self.tool_calls and not self.images and not (self.content or "").strip()


class VisibleOpinion(Strict):
    """What a chief is shown of one judge's opinion on an item; `said` is None for a judge without one.

    app/domain/escalation.py decides which opinions are shown.
    """

    round: int = Field(ge=0)
    criterion: Id
    judge: int = Field(ge=1, description="the judge's number among the others")
    said: str | None = None
    argument: str = ""

    @property
    def bytes(self) -> int:
        """The size of its texts in UTF-8."""
        return sum(len(text.encode("utf-8", "surrogatepass")) for text in (self.said or "", self.argument))


ItemKind = Literal["text", "pair", "conversation", "candidates"]
Judged = Literal["last_answer", "conversation"]
"""Which part of a conversation is judged: its last message, with the others as context, or all of it."""

JudgedKind = Literal["text", "pair", "last_answer", "conversation"]
"""The kinds of items that are prompted for in different words."""

FORMS: dict[ItemKind, set[str]] = {
    "text": {"text"}, "pair": {"text_a", "text_b"}, "conversation": {"messages"}, "candidates": {"candidates"}
}  # fmt: skip
"""The fields that an item of each kind has; it has no other of these fields."""
ITEM_RULE = "must have text, text_a and text_b, messages or candidates"
MAX_CANDIDATES = 1000
LIST_ID_CHARS = MAX_ID_LENGTH - 20
"""The most characters of a list's id: its pairs' ids begin with it."""


class RankedText(Strict):
    """One of several texts that are ranked."""

    id: Id
    text: Text


class Item(Strict):
    """One thing to judge: a text, two texts to compare, a conversation, or candidates to rank."""

    id: Id
    text: Text | None = Field(default=None, description="the output that is judged")
    text_a: Text | None = Field(default=None, description="of two outputs to compare, one")
    text_b: Text | None = Field(default=None, description="and the other")
    messages: list[Turn] | None = Field(default=None, min_length=1, max_length=MAX_MESSAGES)
    judged: Judged = Field(default="last_answer", description="what of the messages is judged")
    candidates: list[RankedText] | None = Field(
        default=None, min_length=2, max_length=MAX_CANDIDATES, description="texts to rank, by comparing them in pairs"
    )
    prompt: str | None = Field(default=None, description="what the output answers, if that matters")
    reference: str | None = Field(default=None, description="an answer known to be good, if there is one")
    images: list[Image] | None = Field(
        default=None, min_length=1, max_length=MAX_IMAGES, description="that belong to the material; messages have own"
    )
    criteria: list[Criterion] | None = Field(
        default=None, min_length=1, max_length=MAX_CRITERIA, description="of this item alone (scale: criteria)"
    )
    metadata: Metadata = Field(default_factory=dict)
    probe: SkipJsonSchema[str | None] = Field(
        default=None, description="what was changed in this variant of an item; set by Dicast alone"
    )
    opinions: SkipJsonSchema[list[VisibleOpinion] | None] = Field(
        default=None, description="what a panel's chief is told of the others' opinions; set by Dicast alone"
    )

    @property
    def kind(self) -> ItemKind:
        """The kind of the item."""
        if self.text is not None:
            return "text"
        return next(kind for kind, fields in FORMS.items() if all(getattr(self, name) is not None for name in fields))

    @property
    def judged_as(self) -> JudgedKind:
        """The kind as which it is judged; lists of candidates are judged as pairs."""
        if self.messages is not None:
            return self.judged
        return "text" if self.text is not None else "pair"

    @property
    def output(self) -> str:
        """The judged text: both texts of a pair, and of a conversation the part that `judged` selects."""
        if self.messages is not None:
            turns = self.messages if self.judged == "conversation" else self.messages[-1:]
            return "\n".join(turn.content for turn in turns if turn.content)
        return "\n".join(text for text in (self.text, self.text_a, self.text_b) if text)

    @property
    def all_images(self) -> tuple[Image, ...]:
        """The images of the item and of its messages, in the order in which a judge is shown them."""
        if self.images is None and self.messages is None:
            return ()
        return (*(self.images or ()), *(image for turn in self.messages or () for image in turn.images or ()))

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts of the item that a judge reads, without empty ones."""
        if self.text is not None and self.images is None and self.opinions is None and self.criteria is None:
            return tuple([text for text in (self.text, self.prompt, self.reference) if text])
        opinion_texts = (text for opinion in self.opinions or () for text in (opinion.said, opinion.argument))
        turns = (text for message in self.messages or () for text in message.texts)
        candidate_texts = (candidate.text for candidate in self.candidates or ())
        described = (image.description for image in self.images or ())
        criterion_texts = (criterion.text for criterion in self.criteria or ())
        texts = (
            self.text, self.text_a, self.text_b, *turns, *candidate_texts, self.prompt, self.reference,
            *described, *criterion_texts, *opinion_texts,
        )  # fmt: skip
        return tuple(text for text in texts if text)

    @property
    def text_bytes(self) -> int:
        """The size of its texts in UTF-8."""
        return sum(len(text.encode("utf-8", "surrogatepass")) for text in self.texts)

    @property
    def stored_bytes(self) -> int:
        """The approximate size of the item in the store: its texts, and images given as data."""
        return self.text_bytes + sum(len(image.image) for image in self.all_images)

    def with_images(self, change: Callable[[Image], Image]) -> Self:
        """Return the item with `change` applied to each image in order."""
        if not self.all_images:
            return self
        images = self.images and [change(image) for image in self.images]
        turns = self.messages and [
            turn.model_copy(update={"images": [change(image) for image in turn.images]}) if turn.images else turn
            for turn in self.messages
        ]
        return self.model_copy(update={"images": images, "messages": turns})

    def without(self, names: Set[str]) -> Self:
        """Return the item without the metadata called `names`."""
        if not names or names.isdisjoint(self.metadata):
            return self
        return self.model_copy(update={"metadata": {k: v for k, v in self.metadata.items() if k not in names}})

    def swapped(self) -> Self:
        """Return the pair with its texts swapped."""
        return self.model_copy(update={"text_a": self.text_b, "text_b": self.text_a})

    def model_post_init(self, _: Any) -> None:
        """Check that the item is of exactly one kind.

        It is not a validator because pydantic would word the errors differently.
        """
        present = [name for fields in FORMS.values() for name in sorted(fields) if getattr(self, name) is not None]
        if set(present) not in FORMS.values():
            raise ValueError(f"{ITEM_RULE}, got {' and '.join(present) or 'none of them'}")
        if self.candidates is not None:
            _check_candidates(self.id, self.candidates)
        if self.criteria is not None:
            check_criteria(self.criteria)
        if self.messages is not None and len(self.all_images) > MAX_IMAGES:
            raise ValueError(f"images: an item has at most {MAX_IMAGES}, got {len(self.all_images)}")
        if self.messages is None:
            if self.judged != "last_answer":
                raise ValueError(f"judged: belongs to messages, got {self.judged!r} without them")
        elif self.judged == "last_answer":
            _check_answer(self.messages[-1])
        elif all(message.says_nothing for message in self.messages):
            raise ValueError("messages: none of them has content or tool_calls")


def _check_candidates(item_id: str, candidates: list[RankedText]) -> None:
    """Raise ValueError for two candidates of one id, and for an item id that leaves no room for its pairs' ids."""
    if len(item_id) > LIST_ID_CHARS:
        raise ValueError(f"id: of a list of candidates has at most {LIST_ID_CHARS} characters, got {len(item_id)}")
    ids: set[str] = set()
    for candidate in candidates:
        if candidate.id in ids:
            raise ValueError(f"candidates: the id {candidate.id!r} occurs twice")
        ids.add(candidate.id)


def _check_answer(last: Turn) -> None:
    """Raise ValueError if the last message is no answer."""
    if last.role.strip().lower() in ASKING_ROLES:
        raise ValueError(
            f"messages: the last answer is judged, and the last message is by {last.role!r}; end with the answer, or "
            "say judged: conversation"
        )
    if last.says_nothing:
        raise ValueError("messages: the last answer is judged, and the last message has neither content nor tool_calls")


class ItemSource(Strict):
    """A file of items, which every planning worker must be able to read."""

    path: str = Field(min_length=1)
    format: Literal["jsonl", "csv", "tsv", "parquet"] | None = Field(default=None, description="None: by its ending")
    id_field: str = "id"
    text_field: str | None = "text"
    text_a_field: str | None = Field(default="text_a", description="of pairs; None: no column is")
    text_b_field: str | None = "text_b"
    messages_field: str | None = Field(default="messages", description="of conversations; None: no column is")
    judged: Judged = Field(default="last_answer", description="what of conversations is judged")
    candidates_field: str | None = Field(default="candidates", description="of lists to rank; None: no column is")
    prompt_field: str | None = "prompt"
    reference_field: str | None = "reference"
    images_field: str | None = Field(default="images", description="of images; None: no column is")
    criteria_field: str | None = Field(default="criteria", description="of the items' own criteria; None: no column is")
    limit: int | None = Field(default=None, ge=1, description="judge at most this many items")

    @property
    def judged_columns(self) -> set[str]:
        """The columns that become an item's id and texts."""
        fields = (self.text_field, self.text_a_field, self.text_b_field, self.messages_field, self.candidates_field)
        common = (self.id_field, self.prompt_field, self.reference_field, self.images_field, self.criteria_field)
        return {name for name in (*fields, *common) if name is not None}


class RatingSource(Strict):
    """Ratings by people, in a file of their own or in columns beside the items. They are never shown to a judge.

    In long form each row is a rating, with the columns named by `item_field`, `dimension_field`, `rater_field` and
    `score_field`. In wide form `columns` names the column of each dimension, or one column per rater of a dimension.
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


NOBODY_NAMED = "person"
"""The rater of ratings that name none."""
MAX_RATERS = 200
"""The most raters, since statistics hold a column for each; of a crowd, name the ratings of an item 1, 2, 3 instead."""


@dataclass(frozen=True, slots=True)
class Rating:
    """One person's score of one item in one dimension. `probability` is how likely the item was to be rated, if known.

    It is stored with the job in this form.
    """

    item_id: str
    dimension: str
    rater: str
    score: float
    probability: float | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        """What no other rating of the job may have: item, dimension and rater."""
        return self.item_id, self.dimension, self.rater


@dataclass(frozen=True, slots=True)
class RatingCounts:
    """The number of ratings and of rated items, and the raters in alphabetical order."""

    ratings: int
    items: int
    raters: tuple[str, ...]
