"""Traces: off unless asked for, one for a job over all its processes, and never a danger to a call."""

from __future__ import annotations

import asyncio
import gzip
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from dicast.app import tracing
from dicast.app.domain.opinion import FailureKind, Usage
from dicast.app.pipeline.pools import TracedProvider
from dicast.app.providers.base import ChatReply, ChatRequest, ProviderFailure
from dicast.app.tracing import Tracer, current, trace_of, tracer
from dicast.config.pools import PoolSpec
from tests.command import ROOT
from tests.e2e.cluster import Cluster, Simulated, a_job, until

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SECRET_TEXT = "A text that only the provider may see"


@pytest.fixture
def kept() -> Iterator[tuple[Tracer, InMemorySpanExporter]]:
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield Tracer(provider), exporter
    provider.shutdown()


# ------------------------------------------------------------------ off
@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
        {"OTEL_SERVICE_NAME": "judges"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_traces_are_off_unless_an_endpoint_is_named(environ: dict[str, str]) -> None:
    before = dict(os.environ)
    assert tracer(environ) is None
    assert dict(os.environ) == before


def test_nothing_of_it_is_loaded_while_they_are_off() -> None:
    """(redis loads some of OpenTelemetry itself.)"""
    script = (
        "import os, sys; os.environ['REDIS_URL'] = 'redis://127.0.0.1:1/0'\n"
        "import dicast.app.assembly; from dicast.app.application import app\n"
        "from dicast.app.tracing import NO_TRACES\n"
        "assert app.tracer is None\n"
        "with NO_TRACES.span('judge', client=True, job='j') as span, NO_TRACES.child('record'):\n"
        "    span.set_attribute('a', 1); span.set_attributes({'b': 2}); NO_TRACES.past('lease wait', 1.0, 2.0)\n"
        "assert NO_TRACES.header('00-1-2-01') == {}\n"
        "ours = ('opentelemetry.exporter', 'opentelemetry.sdk.trace')\n"
        "print([name for name in sys.modules if name.startswith(ours)])"
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    run = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=clean, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"


def test_without_the_packages_there_is_a_warning_and_no_trace(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in tracing.DEFAULTS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    assert tracer({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}) is None
    assert "pip install -e '.[tracing]'" in caplog.text


# ------------------------------------------------------------------ spans
def test_a_span_is_a_child_of_what_it_is_told_else_of_the_current_one(
    kept: tuple[Tracer, InMemorySpanExporter],
) -> None:
    tracer, exporter = kept
    assert current() == ""
    with tracer.span("outer", PARENT, pool="p"):
        inner_parent = current()
        with tracer.span("inner"):
            tracer.past("past", 10.0, 12.5)
    with tracer.span("other", inner_parent):
        pass
    for broken in ("", "nonsense", 7, None, PARENT.replace("0af7", "zzzz")):
        with tracer.span("root", broken):
            pass
    spans = {span.name: span for span in exporter.get_finished_spans()}
    trace = 0x0AF7651916CD43DD8448EB211C80319C
    assert {name for name, span in spans.items() if span.context and span.context.trace_id == trace} == {
        "outer", "inner", "past", "other",
    }  # fmt: skip
    parents = {name: span.parent.span_id if span.parent else 0 for name, span in spans.items()}
    ids = {name: span.context.span_id for name, span in spans.items() if span.context}
    assert parents["outer"] == 0xB7AD6B7169203331
    assert parents["inner"] == parents["other"] == ids["outer"] and parents["past"] == ids["inner"]
    assert parents["root"] == 0
    assert (spans["past"].start_time, spans["past"].end_time) == (10_000_000_000, 12_500_000_000)
    assert spans["outer"].attributes == {"dicast.pool": "p"}


def test_a_child_is_recorded_within_another_span_alone(kept: tuple[Tracer, InMemorySpanExporter]) -> None:
    tracer, exporter = kept
    with tracer.child("record"):
        pass
    assert exporter.get_finished_spans() == ()
    with tracer.span("judge"), tracer.child("record", results=2):
        header = tracer.header(PARENT)
    record, judge = exporter.get_finished_spans()
    assert record.parent and judge.context and record.parent.span_id == judge.context.span_id
    assert record.attributes == {"dicast.results": 2}
    assert str(header["traceparent"]).split("-")[1] == f"{judge.context.trace_id:032x}"
    assert tracer.header(PARENT)["traceparent"] == PARENT


def test_what_is_raised_is_told_by_its_type_alone(kept: tuple[Tracer, InMemorySpanExporter]) -> None:
    tracer, exporter = kept
    with pytest.raises(ValueError, match="seen"), tracer.span("fails"):
        raise ValueError(f"{SECRET_TEXT} was seen")
    (span,) = exporter.get_finished_spans()
    assert (span.status.status_code, span.status.description, list(span.events)) == (StatusCode.ERROR, "ValueError", [])


@pytest.mark.parametrize("published", [None, "yesterday", float("inf"), 1e12])
def test_a_header_of_another_clock_or_of_nobody_makes_no_wait(published: Any) -> None:
    parent, at = trace_of({"traceparent": PARENT, "published_at": published})
    assert parent == PARENT and abs(at - time.time()) < 60
    assert trace_of({"published_at": 5}) == ("", 5)


class OneAnswer:
    structured_output, nonce_in_schema, caches = True, False, False

    def __init__(self, answer: ChatReply | BaseException) -> None:
        self._answer, self.closed = answer, False

    async def complete(self, request: ChatRequest) -> ChatReply:
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer

    async def close(self) -> None:
        self.closed = True


REQUEST = ChatRequest(model="m", system="You judge.", user=SECRET_TEXT, max_tokens=99)
POOL = PoolSpec(name="eu", provider="openai", model="m")
REPLY = ChatReply(text=SECRET_TEXT, model="m-2026", usage=Usage(input_tokens=7, output_tokens=3), structured=True)


@pytest.mark.parametrize(
    "answer, told",
    [
        (REPLY, {"gen_ai.response.model": "m-2026", "gen_ai.usage.input_tokens": 7, "gen_ai.usage.output_tokens": 3,
                 "http.response.status_code": 200}),
        (ProviderFailure(FailureKind.RATE_LIMITED, "slow down", status_code=429),
         {"error.type": "rate_limited", "http.response.status_code": 429}),
        (ProviderFailure(FailureKind.CONNECTION, "gone"), {"error.type": "connection"}),
        (asyncio.CancelledError(), {"error.type": "cut"}),
    ],
)  # fmt: skip
async def test_a_call_tells_model_status_and_tokens_and_no_text(
    kept: tuple[Tracer, InMemorySpanExporter], answer: ChatReply | BaseException, told: dict[str, Any]
) -> None:
    tracer, exporter = kept
    provider = TracedProvider(tracer, OneAnswer(answer), POOL)
    try:
        assert await provider.complete(REQUEST) is answer
    except (ProviderFailure, asyncio.CancelledError) as error:
        assert error is answer
    await provider.close()
    (span,) = exporter.get_finished_spans()
    assert span.name == "chat m"
    assert dict(span.attributes or {}) == {
        "dicast.pool": "eu", "gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "m", "gen_ai.request.max_tokens": 99, **told,
    }  # fmt: skip
    assert SECRET_TEXT not in span.to_json()


async def test_an_exporter_that_fails_changes_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    class Fails(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            raise RuntimeError("no room")

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Fails()))
    assert await TracedProvider(Tracer(provider), OneAnswer(REPLY), POOL).complete(REQUEST) is REPLY
    provider.shutdown()


# ------------------------------------------------------------------ over processes
class Collector:
    """An OTLP receiver over HTTP on this machine."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Span]] = []
        self.bodies: list[bytes] = []
        spans, bodies = self.spans, self.bodies

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                body = gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body
                bodies.append(body)
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    names = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
                    for scope in resource.scope_spans:
                        spans.extend((names["service.name"], span) for span in scope.spans)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.stop()


UNITS = 6


@pytest.mark.slow
def test_one_trace_holds_a_submission_and_its_calls_over_processes(
    collector: Collector, tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And when the collector is gone, jobs are judged and workers end as ever."""
    provider = Simulated("--latency", "0.01")
    pools = f'[pools.sim]\nprovider = "simulated"\nbase_url = "{provider.base_url}/v1"\n'
    traced = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "100", "OTEL_SERVICE_NAME": "client",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
    }  # fmt: skip
    for name, value in traced.items():
        monkeypatch.setenv(name, value)
    cluster = Cluster(tmp_path, redis_url, pools, **traced)
    try:
        workers = [cluster.worker(OTEL_SERVICE_NAME=f"worker {n}") for n in range(2)]
        job = a_job(agents=1, dimensions=2, items=UNITS // 2)
        job["items"][0]["text"] = SECRET_TEXT
        cluster.submit({**job, "id": "traced"})
        assert cluster.report("traced")["scored"] == UNITS
        wanted = {"judge": UNITS, "chat simulated-judge": UNITS, "claim": UNITS, "record": UNITS, "lease wait": UNITS,
                  "submit": 1, "publish page": 2, "gather page": 2}  # fmt: skip

        def counts() -> Counter[str]:
            return Counter(span.name for _, span in collector.spans)

        until(lambda: all(counts()[name] >= n for name, n in wanted.items()), f"{wanted} are there; {counts()}", 15)
        _is_one_trace(collector)
        assert SECRET_TEXT.encode() not in b"".join(collector.bodies)

        collector.stop()
        cluster.submit({**job, "id": "untraced"})
        assert cluster.report("untraced")["scored"] == UNITS
        assert [worker.stop() for worker in workers] == [0, 0]
    finally:
        cluster.stop()
        provider.stop()


def _is_one_trace(collector: Collector) -> None:
    """Everything goes back to the submission, which another process than the calls' has told of."""
    spans = {span.span_id: (service, span) for service, span in collector.spans}
    ((root_service, root),) = [(service, span) for service, span in collector.spans if span.name == "submit"]
    assert {span.trace_id for _, span in collector.spans} == {root.trace_id}
    assert root_service == "client" and not root.parent_span_id
    parents = {
        "judge": "publish page", "chat simulated-judge": "judge", "claim": "judge", "lease wait": "judge",
        "publish page": "submit", "gather page": "submit",
    }  # fmt: skip
    for service, span in collector.spans:
        if span is root:
            continue
        _, parent = spans[span.parent_span_id]
        assert service.startswith("worker")
        assert parent.name == parents.get(span.name, "judge"), span.name
        assert parent.start_time_unix_nano <= span.start_time_unix_nano + 50_000_000 or span.name == "lease wait"
    (call, *_) = [span for _, span in collector.spans if span.name == "chat simulated-judge"]
    assert {pair.key for pair in call.attributes} >= {
        "gen_ai.provider.name", "gen_ai.response.model", "http.response.status_code", "gen_ai.usage.input_tokens",
    }  # fmt: skip


def test_headers_are_those_of_the_w_s_recommendation(kept: tuple[Tracer, InMemorySpanExporter]) -> None:
    tracer, _ = kept
    with tracer.span("x", PARENT):
        version, trace, span, flags = current().split("-")
    assert (version, trace, flags) == ("00", PARENT.split("-")[1], "01") and len(span) == 16
    assert tracing.HEADER == "traceparent"
