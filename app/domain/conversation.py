"""The messages of a conversation that is judged. Roles and names are untrusted data, as the texts are."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, StringConstraints, model_validator
from pydantic_core import to_json

from dicast.app.domain.fields import Strict
from dicast.app.domain.image import MAX_IMAGES, Image

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
    """One message of a conversation."""

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
