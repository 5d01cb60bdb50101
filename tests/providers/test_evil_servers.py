"""Answers that no provider should give: always a `ProviderFailure` of the right kind, never anything else."""

from __future__ import annotations

import asyncio
import gzip
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dicast.app.pipeline.call_facts import outcome_of_failure
from dicast.app.providers.base import FailureKind, ProviderFailure
from lab.provider.faults import bomb
from tests.providers.conftest import DIALECTS, KEY, RawServer, Script, answer, chat, failure_of, good_body, make, sends

MALFORMED, CONNECTION, REJECTED = FailureKind.MALFORMED, FailureKind.CONNECTION, FailureKind.REJECTED


def body_of(dialect: str, **changes: Any) -> bytes:
    return json.dumps({**good_body(dialect), **changes}).encode()


def spoilt(dialect: str, content: Any) -> bytes:
    """A good envelope whose text is something else."""
    body = good_body(dialect)
    if dialect == "openai":
        body["choices"][0]["message"]["content"] = content
    else:
        body["content"][0]["text"] = content
    return json.dumps(body).encode()


@pytest.mark.parametrize("status", ["200 OK", "400 Bad Request", "500 Oops", "503 Away"])
@pytest.mark.parametrize(
    "name, kind, told",
    [
        ("rate_limit_error", FailureKind.RATE_LIMITED, 429),
        ("rate_limit_exceeded", FailureKind.RATE_LIMITED, 429),
        ("overloaded_error", FailureKind.OVERLOADED, 529),
    ],
)
async def test_a_body_that_names_a_refusal_is_one_under_any_status(dialect, provider_at, status, name, kind, told):
    body = json.dumps({"type": "error", "error": {"type": name, "message": "later"}}).encode()
    headers = ("content-type: application/json", "retry-after: 7")
    async with RawServer(answer(body, status=status, headers=headers)) as server:
        failure = await failure_of(provider_at(dialect, server.base_url))
    shown = told if status.startswith("200") else int(status[:3])
    assert (failure.kind, failure.status_code, failure.retry_after_s) == (kind, shown, 7.0)
    outcome = outcome_of_failure(failure, "r", 1e9)
    assert (outcome.status, outcome.readings.retry_after_s) == (told, 7.0), "what the pool's governor learns"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>502 Bad Gateway</html>",
        b"null",
        b"[]",
        b'"text"',
        b"{}",
        b"NaN",
        b'{"choices": NaN, "content": NaN}',
        b'{"choices": [], "content": []}',
        b'{"choices": [null], "content": [null]}',
        b'{"choices": [{"message": null}], "content": null}',
        b'{"choices": [{"message": {"content": null}}], "content": [{"type": "text"}]}',
        b'{"choices": [{"message": {"content": ""}}], "content": [{"type": "text", "text": ""}]}',
        b'{"choices": [{"message": {"content": 7}}], "content": 7}',
        b'{"error": {"message": "busy"}, "type": "error"}',
        b'{"choices": [{"message": {"content": "\\ud800"}}], "content": [{"type": "text", "text": "\\ud800"}]}',
        b'{"choices": [{"message": {"content": "\xff\xfe"}}], "content": [{"type": "text", "text": "\xff"}]}',
        b"\xef\xbb\xbf{}",
        b"[" * 50_000,
        b'{"a":' * 10_000,
        b"\x00\x01\x02",
        b'{"choices": 1e999, "content": ' + b"9" * 5000 + b"}",
    ],
    ids=lambda body: repr(body[:40]),
)
async def test_a_200_that_is_no_answer_is_malformed(dialect, provider_at, body):
    async with RawServer(answer(body)) as server:
        failure = await failure_of(provider_at(dialect, server.base_url))
    assert (failure.kind, failure.status_code) == (MALFORMED, 200)


async def test_odd_but_valid_texts_are_kept(dialect, provider_at):
    text = "\u0000\u202e\U0001f600 7.0000001"
    async with RawServer(answer(spoilt(dialect, text))) as server:
        reply = await provider_at(dialect, server.base_url).complete(chat())
    assert reply.text == text


@pytest.mark.parametrize("tokens", [-5, "7", None, True, 10**30, 1.5, [], {}])
async def test_absurd_token_counts_count_as_none(dialect, provider_at, tokens):
    keys = ("prompt_tokens", "completion_tokens") if dialect == "openai" else ("input_tokens", "output_tokens")
    async with RawServer(answer(body_of(dialect, usage=dict.fromkeys(keys, tokens)))) as server:
        reply = await provider_at(dialect, server.base_url).complete(chat())
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (0, 0)


@pytest.mark.parametrize("changes", [{"usage": None}, {"usage": 7}, {"model": 7}, {"model": "\x1b[31m"}], ids=str)
async def test_a_good_answer_may_lack_everything_around_it(dialect, provider_at, changes):
    async with RawServer(answer(body_of(dialect, **changes))) as server:
        reply = await provider_at(dialect, server.base_url).complete(chat())
    assert reply.text == '{"score": 5}'
    assert reply.model in ("judge", "judge-1")


OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"


@pytest.mark.parametrize(
    "raw, kind",
    [
        (b"", CONNECTION),
        (b"HTTP/1.1 200", CONNECTION),
        (b"SSH-2.0-OpenSSH_9.2\r\n", CONNECTION),
        (b"HTTP/9.9 abc\r\n\r\n", CONNECTION),
        (OK + b"x: " + b"y" * 100_000 + b"\r\n\r\n", CONNECTION),
        (OK + b"bad header\r\n\r\n", CONNECTION),
        (OK + b"content-length: 100\r\n\r\n{}", CONNECTION),
        (OK + b"content-length: -1\r\n\r\n{}", CONNECTION),
        (OK + b"content-length: abc\r\n\r\n{}", CONNECTION),
        (OK + b"content-length: 2\r\n\r\n{}{}{}{}", CONNECTION),
        (OK + b"transfer-encoding: chunked\r\n\r\nZZ\r\n{}\r\n", CONNECTION),
        (OK + b"transfer-encoding: chunked\r\n\r\n5\r\n{}", CONNECTION),
        (OK + b"content-encoding: gzip\r\ncontent-length: 2\r\n\r\n{}", MALFORMED),
        (OK + b"content-encoding: gzip, gzip, gzip, gzip, gzip, gzip\r\ncontent-length: 2\r\n\r\n{}", MALFORMED),
        (OK + b"content-encoding: br\r\ncontent-length: 2\r\n\r\n{}", MALFORMED),
        (b"HTTP/1.1 204 No Content\r\n\r\n", MALFORMED),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", REJECTED),
        (b"HTTP/1.1 418 Teapot\r\ncontent-length: 0\r\n\r\n", REJECTED),
        (b"HTTP/1.1 799 Odd\r\ncontent-length: 0\r\n\r\n", FailureKind.SERVER),
        (
            b"HTTP/1.1 500 X\r\ncontent-type: text/html; charset=undefined\r\ncontent-length: 2\r\n\r\n\xff\xff",
            FailureKind.SERVER,
        ),
        (b"HTTP/1.1 500 X\r\ncontent-type: a; charset=zlib_codec\r\ncontent-length: 2\r\n\r\n{}", FailureKind.SERVER),
        (b"HTTP/1.1 500 X\r\ncontent-length: 100\r\n\r\n{}", CONNECTION),
        (b"HTTP/1.1 429 X\r\nset-cookie: \x01;=;;\r\ncontent-length: 0\r\n\r\n", FailureKind.RATE_LIMITED),
    ],
    ids=lambda value: repr(value[:60]) if isinstance(value, bytes) else str(value),
)
async def test_broken_http(dialect, provider_at, raw, kind):
    async with RawServer(sends(raw)) as server:
        failure = await failure_of(provider_at(dialect, server.base_url))
    assert failure.kind is kind, failure.message
    assert failure.message.isprintable()


async def test_what_the_reason_phrase_says_is_nobody_s_business(dialect, calls, provider_at):
    body = json.dumps(good_body(dialect)).encode()
    async with RawServer(sends(b"HTTP/1.1 200 \xff\xfe\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))) as server:
        if calls == "sdk":  # which reads it as UTF-8
            assert (await failure_of(provider_at(dialect, server.base_url))).kind is CONNECTION
        else:
            assert (await provider_at(dialect, server.base_url).complete(chat())).model == "judge-1"


async def test_a_reset_in_the_middle_is_a_connection_failure(dialect, provider_at):
    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK + b"content-length: 100\r\n\r\n{")
        await writer.drain()
        writer.transport.abort()

    async with RawServer(script) as server:
        failure = await failure_of(provider_at(dialect, server.base_url))
    assert failure.kind is CONNECTION
    assert failure.reached, "it may have been charged"
    assert failure.ended, "the other side has closed the connection"


@pytest.mark.parametrize(
    "raw, ended",
    [
        (b"HTTP/1.1 500 X\r\ncontent-length: 2\r\n\r\n{}", True),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", True),
        (b"", True),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{}", True),
        (b"SSH-2.0-OpenSSH_9.2\r\n", False),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 500000\r\n\r\n" + b" " * 500_000, False),
        (b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\n{}", False),
    ],
    ids=lambda value: repr(value[:40]) if isinstance(value, bytes) else str(value),
)
async def test_what_was_not_read_to_its_end_may_go_on_at_the_provider(dialect, provider_at, raw, ended):
    async with RawServer(sends(raw)) as server:
        failure = await failure_of(provider_at(dialect, server.base_url))
    assert failure.ended is ended, failure.message


async def test_a_provider_that_is_silent_may_still_be_working(dialect, provider_at):
    async def silent(*_: object) -> None:
        await asyncio.get_running_loop().create_future()

    async with RawServer(silent) as server:
        failure = await failure_of(provider_at(dialect, server.base_url, timeout_s=0.2))
    assert (failure.kind, failure.ended) == (FailureKind.TIMEOUT, False)


async def test_a_good_answer_that_asks_for_a_pause_tells_it(dialect, provider_at):
    """What follows from it is the governor's to decide."""
    body = json.dumps(good_body(dialect)).encode()
    headers = ("content-type: application/json", "Retry-After: 7", "retry-after-ms: 6500")
    async with RawServer(answer(body, headers=headers)) as server:
        reply = await provider_at(dialect, server.base_url).complete(chat())
    assert reply.headers == {"retry-after": "7", "retry-after-ms": "6500"}


@pytest.mark.parametrize("address", ["http://127.0.0.1:{port}", "http://no-such-host.invalid"])
async def test_who_was_never_reached_charges_nothing(dialect, provider_at, address):
    async with RawServer(sends(b"")) as server:
        port = server.base_url.rpartition(":")[2]
    failure = await failure_of(provider_at(dialect, address.format(port=port)))
    assert (failure.kind, failure.reached) == (CONNECTION, False), failure.message


async def test_redirects_are_not_followed_and_the_key_stays(dialect, provider_at):
    async with RawServer(answer(body_of(dialect))) as other:
        for status in ("301 Moved", "302 Found", "307 Temporary", "308 Permanent"):
            redirect = answer(status=status, headers=(f"location: {other.base_url}/v1/steal",))
            async with RawServer(redirect) as server:
                failure = await failure_of(provider_at(dialect, server.base_url))
            assert failure.kind is REJECTED
        assert other.requests == []


@pytest.mark.parametrize("location", ["http://[", "//\x7f", "http://a:99999999", "file:///etc/passwd", ""])
async def test_redirects_to_nowhere(dialect, provider_at, location):
    async with RawServer(answer(status="302 Found", headers=(f"location: {location}",))) as server:
        failure = await failure_of(provider_at(dialect, server.base_url))
    assert failure.kind in (REJECTED, CONNECTION)


@pytest.mark.parametrize(
    "status, error, kind",
    [
        (400, {}, REJECTED),
        (400, {"message": "Your credit balance is too low to access the API."}, FailureKind.QUOTA_EXHAUSTED),
        (400, {"message": "You have reached your specified API usage limits."}, FailureKind.QUOTA_EXHAUSTED),
        (401, {}, REJECTED),
        (402, {}, FailureKind.QUOTA_EXHAUSTED),
        (403, {}, REJECTED),
        (403, {"type": "billing_error"}, FailureKind.QUOTA_EXHAUSTED),
        (404, {}, REJECTED),
        (408, {}, FailureKind.SERVER),
        (409, {}, REJECTED),
        (413, {}, REJECTED),
        (422, {}, REJECTED),
        (429, {}, FailureKind.RATE_LIMITED),
        (429, {"code": "rate_limit_exceeded"}, FailureKind.RATE_LIMITED),
        (429, {"code": "slow_down"}, FailureKind.RATE_LIMITED),
        (429, {"code": "insufficient_quota"}, FailureKind.QUOTA_EXHAUSTED),
        (429, {"type": "insufficient_quota", "code": None}, FailureKind.QUOTA_EXHAUSTED),
        (429, {"code": "INSUFFICIENT_QUOTA"}, FailureKind.QUOTA_EXHAUSTED),
        (400, {"type": "Rate_Limit_Error"}, FailureKind.RATE_LIMITED),
        (503, {"type": "OVERLOADED_ERROR"}, FailureKind.OVERLOADED),
        (429, {"code": "project_spend_limit_exceeded"}, FailureKind.QUOTA_EXHAUSTED),
        (429, {"details": {"error_code": "enforced_spend_limit_reached"}}, FailureKind.QUOTA_EXHAUSTED),
        (429, {"details": {"error_code": "ramp_limit_exceeded"}}, FailureKind.RATE_LIMITED),
        (429, {"code": 7, "type": [], "details": "x", "message": {}}, FailureKind.RATE_LIMITED),
        (500, {}, FailureKind.SERVER),
        (502, {}, FailureKind.SERVER),
        (503, {"code": "server_is_overloaded"}, FailureKind.SERVER),
        (504, {}, FailureKind.SERVER),
        (520, {}, FailureKind.SERVER),
        (529, {"type": "overloaded_error"}, FailureKind.OVERLOADED),
    ],
)
async def test_status_codes(dialect, provider_at, status, error, kind):
    body = json.dumps({"error": error}).encode()
    async with RawServer(answer(body, status=f"{status} X")) as server:
        failure = await failure_of(provider_at(dialect, server.base_url))
        assert len(server.requests) == 1
    assert (failure.kind, failure.status_code) == (kind, status)


@pytest.mark.parametrize("body", [b'{"error": "down"}', b"[" * 100_000, b"\xff", b"[]", b'{"error": {"error": 1}}'])
async def test_error_bodies_of_any_form(dialect, provider_at, body):
    async with RawServer(answer(body, status="503 X")) as server:
        failure = await failure_of(provider_at(dialect, server.base_url))
    assert failure.kind is FailureKind.SERVER


GOOGLE = {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "Quota exceeded.", "details": [
    {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": []},
    {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.074824224s"},
]}  # fmt: skip
LIMITED = FailureKind.RATE_LIMITED


@pytest.mark.parametrize(
    "body, kind, status",
    [
        ({"error": {"code": 429, "message": "slow down"}}, LIMITED, 429),
        ({"error": {"code": "429", "message": "slow down"}}, LIMITED, 429),
        ({"error": {"code": 502}, "choices": []}, FailureKind.SERVER, 502),
        ({"error": {"code": 408}}, FailureKind.SERVER, 408),
        ({"error": {"code": 402, "message": "no credits"}}, FailureKind.QUOTA_EXHAUSTED, 402),
        ({"error": {"code": 403}}, REJECTED, 403),
        ({"error": {"code": "INSUFFICIENT_QUOTA"}}, FailureKind.QUOTA_EXHAUSTED, 402),
        ({"type": "error", "error": {"type": "overloaded_error"}}, FailureKind.OVERLOADED, 529),
        ({"type": "error", "error": {"type": "api_error"}}, FailureKind.SERVER, 500),
        ({"error": {"type": "server_error"}}, FailureKind.SERVER, 500),
        ({"error": GOOGLE}, LIMITED, 429),
        ([{"error": GOOGLE}], LIMITED, 429),
        ({"error": {"status": "UNAVAILABLE"}}, FailureKind.SERVER, 503),
        ({"error": {"code": 429}, "choices": [{"message": {"content": '{"score": 5}'}}],
          "content": [{"type": "text", "text": "5"}]}, LIMITED, 429),
        ({"choices": [{"error": {"code": 502}, "finish_reason": "error", "message": {"content": ""}}]},
         FailureKind.SERVER, 502),
        ({"error": {"code": 200}}, MALFORMED, 200),
        ({"error": {"code": True}}, MALFORMED, 200),
        ({"error": {"code": 4290}}, MALFORMED, 200),
        ({"error": "busy"}, MALFORMED, 200),
    ],
    ids=lambda value: json.dumps(value)[:70] if isinstance(value, dict | list) else str(value),
)  # fmt: skip
async def test_an_error_under_200_is_what_it_names(dialect, provider_at, body, kind, status):
    async with RawServer(answer(json.dumps(body).encode())) as server:
        failure = await failure_of(provider_at(dialect, server.base_url))
    assert (failure.kind, failure.status_code) == (kind, status), failure.message


@pytest.mark.parametrize("empty", [None, "", {}])
async def test_an_answer_that_names_no_error_is_one(dialect, provider_at, empty):
    async with RawServer(answer(body_of(dialect, error=empty))) as server:
        assert (await provider_at(dialect, server.base_url).complete(chat())).text == '{"score": 5}'


@pytest.mark.parametrize(
    "error, headers, wait_s",
    [
        (GOOGLE, (), 34.074824224),
        (GOOGLE, ("retry-after: 7",), 7.0),
        ({"details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "soon"}]}, (), None),
        ({"details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo"}, 7, None]}, (), None),
        ({"metadata": {"headers": {"Retry-After": "9", "X-RateLimit-Remaining": "0", "Set-Cookie": "x"}}}, (), 9.0),
        ({"metadata": {"headers": {"Retry-After": 9}}}, (), None),
    ],
    ids=str,
)
async def test_a_body_may_tell_what_headers_do_not(dialect, provider_at, error, headers, wait_s):
    async with RawServer(answer(json.dumps({"error": error}).encode(), status="429 X", headers=headers)) as server:
        failure = await failure_of(provider_at(dialect, server.base_url))
    assert (failure.kind, failure.retry_after_s) == (LIMITED, wait_s)
    assert "set-cookie" not in failure.headers
    if "metadata" in error and wait_s:
        assert failure.headers["x-ratelimit-remaining"] == "0"


async def test_several_retry_after_headers(dialect, provider_at):
    headers = ("retry-after: 3", "Retry-After: 7", "retry-after: soon")
    async with RawServer(answer(b"{}", status="429 X", headers=headers)) as server:
        failure = await failure_of(provider_at(dialect, server.base_url))
    assert failure.retry_after_s == 7


async def test_messages_hide_key_and_judged_text_and_escape(dialect, provider_at):
    text = "The defendant's private diary says that the moon is made of cheese."
    said = f"Bad key {KEY} (also {KEY[:14]}***), near 'private diary says that the moon' \x1b[31m\n{{}}" + "x" * 999
    body = json.dumps({"error": {"message": said, "code": KEY, "type": "invalid"}}).encode()
    async with RawServer(answer(body, status="400 X")) as server:
        failure = await failure_of(provider_at(dialect, server.base_url), chat(text))
    assert KEY[:14] not in failure.message
    assert "diary" not in failure.message
    assert failure.message.isprintable()
    assert len(failure.message) <= 300
    assert failure.__cause__ is None
    assert failure.__suppress_context__


async def test_lone_surrogates_in_a_request_are_rejected(dialect, provider_at):
    async with RawServer(answer()) as server:
        failure = await failure_of(provider_at(dialect, server.base_url), chat("\ud800"))
        assert server.requests == []
    assert failure.kind is REJECTED


async def test_the_environment_is_not_trusted(dialect, provider_at, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-canary")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-canary")
    for name in ("OPENAI_CUSTOM_HEADERS", "ANTHROPIC_CUSTOM_HEADERS"):
        monkeypatch.setenv(name, "x-leak: canary")
    for name in ("OPENAI_ADMIN_KEY", "ANTHROPIC_AUTH_TOKEN", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, "canary")
    async with RawServer(answer(body_of(dialect))) as server:
        await provider_at(dialect, server.base_url, headers={"x-team": "blue"}).complete(chat())
    request = server.requests[0].lower()
    assert b"canary" not in request.replace(KEY.encode(), b"")
    assert b"x-team: blue" in request


async def test_proxies_are_used_when_asked_for(dialect, provider_at, monkeypatch):
    async with RawServer(answer(body_of(dialect))) as proxy:
        monkeypatch.setenv("http_proxy", proxy.base_url)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        reply = await provider_at(dialect, "http://judge.invalid", trust_env=True).complete(chat())
        assert proxy.requests[0].startswith(b"POST http://judge.invalid")
    assert reply.text == '{"score": 5}'


def endless() -> Script:
    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK + b"transfer-encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"10000\r\n" + b" " * 65536 + b"\r\n")
            await writer.drain()

    return script


@pytest.mark.parametrize("kind", ["endless", "bomb", "bomb in an error", "bomb in a bomb"])
async def test_memory_stays_flat_whatever_comes(dialect, provider_at, kind):
    limit = 1_000_000
    packed, encodings = bomb(2**30), "gzip"
    if kind == "bomb in a bomb":
        packed, encodings = gzip.compress(packed), "gzip, gzip"
    status = "500 X" if kind == "bomb in an error" else "200 OK"
    script = (
        endless()
        if kind == "endless"
        else answer(packed, status=status, headers=("content-type: application/json", f"content-encoding: {encodings}"))
    )
    async with RawServer(script) as server:
        provider = provider_at(dialect, server.base_url, max_response_bytes=limit)
        tracemalloc.start()
        try:
            failure = await failure_of(provider)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    if kind == "bomb in an error":
        assert (failure.kind, failure.status_code) == (FailureKind.SERVER, 500)
    else:
        assert failure.kind is MALFORMED
        assert "larger than 1000000 bytes" in failure.message
    assert peak < limit + 8 * 2**20


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(raw=st.binary(max_size=300), prefix=st.sampled_from([b"", OK, OK + b"\r\n", b"HTTP/1.1 "]))
def test_no_bytes_whatever_raise_anything_else(raw, prefix):
    async def call(dialect: str) -> None:
        async with RawServer(sends(prefix + raw)) as server:
            provider = make(dialect, server.base_url)
            try:
                async with asyncio.timeout(5):
                    await provider.complete(chat())
            except ProviderFailure:
                pass
            finally:
                await provider.close()

    for dialect in DIALECTS:
        asyncio.run(call(dialect))
