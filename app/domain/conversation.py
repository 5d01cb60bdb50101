"""The messages of a conversation that is judged. Roles and names are data as the texts are: nobody is believed."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, StringConstraints
from pydantic_core import to_json

from dicast.app.domain.fields import Strict

MAX_MESSAGES = 1000
MAX_TOOL_CALLS = 100
MAX_NAME_CHARS = 200

ROLES = ("system", "developer", "user", "assistant", "tool")
"""Those that a judge is told of by name; any other is quoted to it."""
ASKING = frozenset({"system", "developer", "user", "human", "tool", "function"})
"""Roles that give no answer."""


def _joined(content: Any) -> Any:
    """A list of text parts, as APIs have it, means their texts one behind the other."""
    if not isinstance(content, list):
        return content
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ValueError("must be a text, or a list of {type: text, text: ...}")
    return "\n".join(part["text"] for part in content)


def _writable(calls: list[JsonValue]) -> list[JsonValue]:
    """What is nested too deeply would otherwise be found out only when the job is stored."""
    try:
        to_json(calls)
    except ValueError as error:
        raise ValueError(f"cannot be written as JSON: {error}") from None
    return calls


Name = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME_CHARS)]


class Turn(Strict):
    """One turn."""

    role: Name
    content: Annotated[str | None, BeforeValidator(_joined)] = None
    name: Name | None = None
    tool_calls: Annotated[list[JsonValue] | None, AfterValidator(_writable)] = Field(
        default=None, max_length=MAX_TOOL_CALLS
    )
    tool_call_id: Name | None = None

    @property
    def calls(self) -> str:
        """The tool calls as text; '' without any."""
        return json.dumps(self.tool_calls, ensure_ascii=False, indent=1) if self.tool_calls else ""

    @property
    def texts(self) -> tuple[str, ...]:
        """All that a judge reads of it, the empty left out."""
        given = (self.role, self.name, self.content, self.calls, self.tool_call_id)
        return tuple(text for text in given if text)

    @property
    def says_nothing(self) -> bool:
        """Whether it has neither text nor tool calls."""
        return not self.tool_calls and not (self.content or "").strip()
