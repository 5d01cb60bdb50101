"""OpenTelemetry traces, off unless an endpoint is named as OpenTelemetry's own documentation says.

`OTEL_EXPORTER_OTLP_ENDPOINT` (or `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`) switches them on; the sampler, the service's
name, time limits and headers are the standard `OTEL_...` variables. Spans are sent by a thread of the SDK, which drops
what it cannot send: no call waits for it, and none fails of it. Spans hold names, numbers and models, never a judged
text, a prompt or a key.
"""
# ruff: noqa: PLC0415  (nothing of OpenTelemetry is loaded while traces are off)

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

logger = logging.getLogger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
DEFAULTS = {"OTEL_SERVICE_NAME": "dicast", "OTEL_EXPORTER_OTLP_TIMEOUT": "3"}
"""Defaults of variables. The time-out bounds how long a process that ends waits for an unavailable collector."""
HEADER = "traceparent"
"""W3C Trace Context: a job's record has the span of its submission, a message's header that of its page's
publishing."""
PUBLISHED = "published_at"
"""The field beside it in the header: the Unix time at which the message was sent."""

Value = str | bool | int | float


def tracer(environ: Mapping[str, str]) -> Tracer | None:
    """Return the tracer of a process with this environment; None if traces are off, or a library is missing."""
    off = environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or environ.get("OTEL_TRACES_EXPORTER") == "none"
    if off or not any(environ.get(name) for name in ENDPOINTS):
        return None
    otel_variables = {name: value for name, value in environ.items() if name.startswith("OTEL_")}
    for name, value in {**DEFAULTS, **otel_variables}.items():  # the SDK reads the process's environment, not `.env`
        os.environ.setdefault(name, value)
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        logger.warning("no traces: %s is missing: pip install -e '.[tracing]'", error.name)
        return None
    try:
        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    except ValueError as error:  # of a variable that the SDK does not understand
        logger.warning("no traces: %s", error)
        return None
    return Tracer(provider)


class AnySpan(Protocol):
    """A span while it is open (see `opentelemetry.trace.Span`)."""

    def set_attribute(self, key: str, value: Any) -> None: ...
    def set_attributes(self, attributes: Mapping[str, Any]) -> None: ...


class _NoSpan:
    """Stands for every span while traces are off."""

    def set_attribute(self, key: str, value: Any) -> None: ...
    def set_attributes(self, attributes: Mapping[str, Any]) -> None: ...

    def __enter__(self) -> _NoSpan:
        return self

    def __exit__(self, *_: object) -> None: ...


NO_SPAN = _NoSpan()


class Traces:
    """Takes spans, and keeps none: traces are off. A `parent` is a W3C traceparent; one that cannot be read, or '', is
    none: then the span is a child of the current one, or begins a trace."""

    def span(
        self, name: str, parent: object = "", *, client: bool = False, **attributes: Value
    ) -> AbstractContextManager[AnySpan]:
        """Record a span around the block, which is the current one meanwhile. An exception is recorded by its type
        alone."""
        return NO_SPAN

    def child(self, name: str, **attributes: Value) -> AbstractContextManager[AnySpan]:
        """Record a span around the block if it is within another one."""
        return NO_SPAN

    def past(self, name: str, from_s: float, to_s: float, **attributes: Value) -> None:
        """Record a child of the current span that has ended already; instants are Unix times."""

    def header(self, parent: str) -> dict[str, Value]:
        """Return what a message carries so that its work is a child of the current span, or of `parent`."""
        return {}


NO_TRACES = Traces()


class Tracer(Traces):
    """Makes spans of one provider."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider, self._tracer = provider, provider.get_tracer("dicast")

    def span(
        self, name: str, parent: object = "", *, client: bool = False, **attributes: Value
    ) -> AbstractContextManager[AnySpan]:
        return self._span(name, parent, attributes, client=client)

    @contextmanager
    def _span(
        self, name: str, parent: object, attributes: Mapping[str, Value], *, client: bool = False
    ) -> Iterator[Span]:
        from opentelemetry.trace import SpanKind, Status, StatusCode

        with self._tracer.start_as_current_span(
            name, _context(parent), SpanKind.CLIENT if client else SpanKind.INTERNAL, _dotted(attributes),
            record_exception=False, set_status_on_exception=False,
        ) as span:  # fmt: skip
            try:
                yield span
            except BaseException as error:  # whatever ends what the span is around
                span.set_status(Status(StatusCode.ERROR, type(error).__name__))
                raise

    def child(self, name: str, **attributes: Value) -> AbstractContextManager[AnySpan]:
        return self._span(name, "", attributes) if current() else NO_SPAN

    def header(self, parent: str) -> dict[str, Value]:
        return {HEADER: current() or parent, PUBLISHED: round(time.time(), 3)}

    def past(self, name: str, from_s: float, to_s: float, **attributes: Value) -> None:
        span = self._tracer.start_span(name, attributes=_dotted(attributes), start_time=_ns(min(from_s, to_s)))
        span.end(_ns(to_s))

    def close(self) -> None:
        """Send what has not been sent, for as long as the exporter's time limit allows."""
        self._provider.shutdown()


def current() -> str:
    """Return the current span as a traceparent; "" if there is none."""
    from opentelemetry.trace import get_current_span

    context = get_current_span().get_span_context()
    if not context.is_valid:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def trace_of(header: Mapping[str, object]) -> tuple[object, float]:
    """Return the traceparent in a message's header, and the Unix time at which it was sent, which is at most now by
    this machine's clock."""
    now, published = time.time(), header.get(PUBLISHED)
    return header.get(HEADER, ""), min(now, published) if isinstance(published, float | int) else now


def _context(parent: object) -> Context | None:
    from opentelemetry.trace import get_current_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    if not isinstance(parent, str) or not parent:
        return None
    context = TraceContextTextMapPropagator().extract({HEADER: parent})
    return context if get_current_span(context).get_span_context().is_valid else None


def _dotted(attributes: Mapping[str, Value]) -> dict[str, Value]:
    return {f"dicast.{name}": value for name, value in attributes.items()}


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
