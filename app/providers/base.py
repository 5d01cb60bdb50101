"""The small protocol between the pipeline and a provider's API.

A provider makes exactly one HTTP call per `complete`: retries, waits, limits and deadlines are the caller's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from dicast.app.domain.opinion import FailureKind, Usage
from dicast.app.domain.verdict import Token
from dicast.errors import DicastError

__all__ = ["ChatReply", "ChatRequest", "FailureKind", "Provider", "ProviderFailure"]

ANSWERS = "n"
"""The parameter that asks for several answers to one call."""
FLEX = "flex"
"""The kind of service that answers when there is capacity, for less money; a price variant, too."""


class ImagePart(NamedTuple):
    """An image behind the first `at` characters of the user's text: `data` in base64 of a media `type`, or an
    `address`, which the provider fetches and nobody else."""

    at: int
    type: str = ""
    data: str = ""
    address: str = ""
    detail: str | None = None


@dataclass(slots=True)
class Transit:
    """How far one call has come, for whoever cuts it.

    `written`: the request, or a part of it, may have left this process. Providers that can tell set it to False first,
    and to True when they write. `ended`: the provider is known to have stopped working on the call, because its answer
    or its error was read or it closed the connection.
    """

    written: bool = True
    ended: bool = False

    def is_open(self) -> bool:
        """Whether the provider may be working on the call."""
        return self.written and not self.ended


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One question to a model. `schema` asks for the structured channel and is a JSON schema (an object). `images`
    stand within the user's text, in order. `service_tier` asks for a kind of service of OpenAI's, such as `FLEX`; ""
    leaves it to the account. `params` are further parameters by their names in jobs; those `dropped`, `temperature`
    among them, are left out, also where the pool has them. `logprobs` asks for the probabilities of the answer's
    tokens, `answers` for so many answers at once. The first `shared` characters of `user` come again in other calls
    soon, with the same system text, schema and images; 0: none. `transit` is updated while the call is made."""

    model: str
    system: str
    user: str
    max_tokens: int
    temperature: float | None = None
    schema: Mapping[str, Any] | None = None
    schema_name: str = "opinion"
    images: Sequence[ImagePart] = ()
    service_tier: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    dropped: frozenset[str] = frozenset()
    logprobs: bool = False
    answers: int = 1
    shared: int = 0
    transit: Transit = field(default_factory=Transit, compare=False, repr=False)

    @property
    def is_flex(self) -> bool:
        """Whether it asks for the slow service at a lower price, which may have no room for it."""
        return self.service_tier == FLEX

    @property
    def pieces(self) -> Iterator[str | ImagePart]:
        """Yield the pieces of the user's message, texts and images, in order."""
        before = 0
        for image in self.images:
            if image.at > before:
                yield self.user[before : image.at]
            yield image
            before = image.at
        if self.user[before:]:
            yield self.user[before:]


@dataclass(frozen=True, slots=True)
class ChatReply:
    """One answer, or the first of several; `others` are those of the further ones that can be read. `usage` tells the
    tokens of all of them together. `headers` are the response's rate-limit headers, names in lower case.

    `structured` tells that `text` came through the structured channel (schema-constrained output or a forced
    tool's input), where judged text cannot have been echoed in place of the judge's own answer.
    `truncated` tells that the model stopped at `max_tokens`. `fingerprint` is what the provider calls the state of its
    system that answered (`system_fingerprint`), "" if it tells none. `tokens` are those of the answer, () where they
    were not asked for or the provider does not tell them.
    """

    text: str
    model: str
    usage: Usage
    structured: bool
    truncated: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    fingerprint: str = ""
    tokens: Sequence[Token] = ()
    others: Sequence[ChatReply] = ()
    choices: int = 1
    """How many answers came, also such as cannot be read."""


class ProviderFailure(DicastError):
    """The call failed. `message` is safe to log: keys and judged texts never enter it.

    `retry_after_s` is what the provider asked for, parsed but not clamped; None if absent or unusable. `reached` tells
    that the request may have reached the provider: False only if it is known that it did not. `ended` tells that the
    provider is known to have stopped working on it: False after a time-out, and where this side stopped reading.
    `usage` is what an answer without an opinion took, as far as the provider has told it. `refused_params` are the
    parameters, by their names in jobs, for which a request was refused that may do without them.
    """

    problem = "provider-failure"

    def __init__(
        self,
        kind: FailureKind,
        message: str,
        *,
        status_code: int | None = None,
        retry_after_s: float | None = None,
        headers: Mapping[str, str] | None = None,
        reached: bool = True,
        ended: bool = True,
        usage: Usage | None = None,
        refused_params: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.status_code = status_code
        self.retry_after_s = retry_after_s
        self.headers: Mapping[str, str] = headers or {}
        self.reached = reached
        self.ended = ended or not reached
        self.usage = usage
        self.refused_params = tuple(refused_params)


class Provider(Protocol):
    """One account at one provider, shared by all calls of a process on one event loop."""

    structured_output: bool
    """Whether `ChatRequest.schema` is honoured; if not, units are judged one by one even when batching is on."""

    caches: bool
    """Whether the provider can be had to read the beginning of a request from a cache."""

    nonce_in_schema: bool
    """Whether a schema may differ from call to call at no cost, and so hold the nonce itself."""

    async def complete(self, request: ChatRequest) -> ChatReply:
        """Make one call; raises `ProviderFailure`, or `asyncio.CancelledError` when the caller's deadline cuts it."""
        ...

    async def close(self) -> None: ...
