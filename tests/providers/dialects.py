"""What the providers of examples/providers.toml do with a request, as their documentation and answers that others have
published say, and the simulated server in their place.

What is special about each, and who says so:

* Azure's filter answers 400 and names it within `innererror` (learn.microsoft.com/azure, content filtering).
* Gemini's compatible API answers errors in a list, knows no `seed`, and tells reasoning in the sum of tokens alone
  (github.com/Vali-98/ChatterUI/issues/227, github.com/mozilla-ai/any-llm/issues/1290).
* Mistral refuses unknown fields with 422, `max_completion_tokens` among them, and calls the seed `random_seed`
  (docs.mistral.ai, github.com/OpenWhispr/openwhispr/issues/844).
* OpenRouter leaves out what no provider of a model takes, unless `require_parameters` is true: then it answers 404
  (openrouter.ai/docs, provider routing; github.com/block/buzz/issues/3018). The error of a model's provider stands as a
  text in its own (github.com/OpenRouterTeam/ai-sdk-provider/issues/50). Its filter tells reasons and the judged text.
* DeepSeek's models think, and heed no `temperature` then, without an error
  (api-docs.deepseek.com/guides/thinking_mode).
* xAI names parameters in its own spelling, counts reasoning beside the completion's tokens, and refuses content with
  403 (docs.x.ai; github.com/vercel/ai/pull/12425, github.com/UKGovernmentBEIS/inspect_ai/pull/2267).
* Bedrock's compatible API lists all known fields where one is unknown (github.com/BerriAI/litellm/issues/13959).
* vLLM, TGI and Ollama leave out what they do not know (github.com/vllm-project/vllm/pull/10463). Ollama refuses an
  effort where the model does not think.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import orjson
from aiohttp import web

from lab.provider import Behaviour, SimulatedAccount, SimulatedConfig
from lab.provider.features import REFUSALS

Body = dict[str, Any]
REASONED = 50
"""The tokens of reasoning before each answer."""
FLAGGED = "the judged text that was flagged"
OF_ALL = frozenset({"model", "messages", "temperature", "top_p", "stop", "max_tokens", "response_format"})
OF_OPENAI = OF_ALL | {"max_completion_tokens", "reasoning_effort", "seed", "service_tier", "n"}


class Manners(NamedTuple):
    """One provider. `takes` are the fields that it knows; another one is refused in the words of `unknown`, or left out
    if there are none. `told` is how it tells limits (lab/provider/budgets.py), `filtered` its answer to a filtered
    request, a text being the reason of an end, and `thinks` puts reasoning where it has it in an answer."""

    takes: frozenset[str]
    unknown: str = ""
    told: str = "silent"
    filtered: tuple[int, Any] | str = ""
    thinks: Callable[[Body], None] | None = None


def _message(body: Body) -> Body:
    return body["choices"][0]["message"]


def _apart(name: str) -> Callable[[Body], None]:
    """Reasoning in a field of its own, counted in the completion."""

    def thinks(body: Body) -> None:
        _message(body)[name] = "Let me see."

    return thinks


def _uncounted(body: Body) -> None:
    body["usage"]["completion_tokens"] -= body["usage"].pop("completion_tokens_details")["reasoning_tokens"]


def _beside(body: Body) -> None:
    body["usage"]["completion_tokens"] -= body["usage"]["completion_tokens_details"]["reasoning_tokens"]
    _message(body)["reasoning_content"] = "Let me see."


def _parts(body: Body) -> None:
    body["usage"].pop("completion_tokens_details")
    words = _message(body)["content"]
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "Let me see."}]}
    _message(body)["content"] = [thought, *([{"type": "text", "text": words}] if words else [])]


def _before(tag: str) -> Callable[[Body], None]:
    def thinks(body: Body) -> None:
        body["usage"].pop("completion_tokens_details")
        words = _message(body)["content"]
        _message(body)["content"] = f"<{tag}>A {{}} of thought.</{tag}>{words}" if words else f"<{tag}>A {{}} of"

    return thinks


_AZURE_FILTER = {
    "error": {
        "message": "The response was filtered due to the prompt triggering Azure OpenAI's content management policy.",
        "type": None, "param": "prompt", "code": "content_filter", "status": 400,
        "innererror": {"code": "ResponsibleAIPolicyViolation", "content_filter_result": {"hate": {"filtered": True}}},
    }
}  # fmt: skip
_OPENROUTER_FILTER = {
    "error": {
        "code": 403,
        "message": "Your chosen model requires moderation and your input was flagged",
        "metadata": {"reasons": ["violence"], "flagged_input": FLAGGED, "provider_name": "OpenAI", "model_slug": "m"},
    }
}
_XAI_FILTER = {
    "code": "The caller does not have permission to execute the specified operation",
    "error": "Content violates usage guidelines. Team: t, API key ID: k, Model: m, Failed check: SAFETY_CHECK_TYPE_BIO",
}
_GEMINI = Manners(
    OF_ALL | {"reasoning_effort"}, "gemini", filtered="content_filter: PROHIBITED_CONTENT", thinks=_uncounted
)
PROVIDERS: Mapping[str, Manners] = {
    "azure": Manners(OF_OPENAI, "argument", "azure", (400, _AZURE_FILTER), lambda _: None),
    "gemini": _GEMINI,
    "mistral": Manners(OF_ALL | {"random_seed"}, "mistral", "mistral", thinks=_parts),
    "groq": Manners(OF_OPENAI, "groq", "openai", thinks=_apart("reasoning")),
    "together": Manners(OF_ALL | {"seed"}, "openai", "together"),
    "openrouter": Manners(
        OF_OPENAI - {"reasoning_effort"} | {"reasoning", "provider"}, "openrouter", "openrouter",
        (403, _OPENROUTER_FILTER), _apart("reasoning"),
    ),
    "deepseek": Manners(OF_ALL | {"reasoning_effort"}, filtered="content_filter", thinks=_apart("reasoning_content")),
    "xai": Manners(OF_ALL | {"seed"}, "xai", "openai", (403, _XAI_FILTER), _beside),
    "bedrock": Manners(OF_OPENAI, "serde", filtered="guardrail_intervened", thinks=_before("reasoning")),
    "vertex": _GEMINI,
    "vllm": Manners(OF_OPENAI - {"reasoning_effort", "service_tier"}, thinks=_before("think")),
    "tgi": Manners(OF_ALL | {"seed"}),
    "ollama": Manners(OF_ALL | {"seed", "reasoning_effort"}, thinks=_apart("reasoning")),
}  # fmt: skip


class Server(SimulatedAccount):
    """Does as one provider does. `refuses` are fields that the model refuses, each with its status and the error's
    body; `unheeded` are fields that it takes, and does not heed. `bodies` are the requests', `heeded` what was heeded
    of each."""

    def __init__(
        self, manners: Manners, *, refuses: Mapping[str, tuple[int, Any]] | None = None,
        unheeded: frozenset[str] = frozenset(), filtered: bool = False, **behaviour: Any,
    ) -> None:  # fmt: skip
        super().__init__(SimulatedConfig(behaviour=Behaviour().changed({"told": manners.told, **behaviour})))
        self.manners, self.refuses, self.unheeded, self.filtered = manners, refuses or {}, unheeded, filtered
        self.thinks = manners.thinks if behaviour.get("reasoning") else None
        self.bodies: list[Body] = []
        self.heeded: list[Body] = []
        self.paths: list[str] = []

    async def serve(self, request: Any, wire: Any, call: Any) -> Any:
        body = dict(call.body)
        self.bodies.append(body)
        self.paths.append(request.path)
        unknown = [field for field in body if field not in self.manners.takes]
        if unknown and self.manners.unknown:
            status, words = REFUSALS[self.manners.unknown]
            return answered(status, words(unknown[0], call.model))
        for field in body:
            if field in self.refuses:
                return answered(*self.refuses[field])
        left = {*unknown, *self.unheeded}
        self.heeded.append({field: value for field, value in body.items() if field not in left})
        if isinstance(self.manners.filtered, tuple) and self.filtered:
            return answered(*self.manners.filtered)
        response = await super().serve(request, wire, call)
        if response.status != 200 or not (self.thinks or self.filtered):
            return response
        told = orjson.loads(response.body)
        if self.thinks:
            self.thinks(told)
        if self.filtered:
            told["choices"][0] |= {"finish_reason": self.manners.filtered, "message": {"role": "assistant"}}
        return answered(200, told)


def answered(status: int, body: Any) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(body), content_type="application/json")


def refusal(style: str, field: str, model: str = "judge") -> tuple[int, Any]:
    """Return how a provider refuses a field, by one of `REFUSALS`."""
    status, words = REFUSALS[style]
    return status, words(field, model)
