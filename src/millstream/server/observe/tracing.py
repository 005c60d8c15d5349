"""Traces: which request published a message, and which work followed.

A request's W3C `traceparent` is stored in the headers of the records that it publishes, so that a
consumer can continue the trace. Commands on a socket belong to the trace of its handshake. If
OpenTelemetry is installed and configured, the server adds its own spans: request, publish, claim
and ack, in one trace per message. Without OpenTelemetry this module does nothing, at almost no
cost.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from importlib import import_module
from math import inf
from typing import Any

from msgspec.structs import replace

from millstream.command import Command, Transact
from millstream.format.headers import add_header
from millstream.limits import Limits
from millstream.log.commands import Append
from millstream.queue.commands import (
    ClaimMessages,
    FinishClaims,
    PutFresh,
    PutMessages,
    PutReported,
    Run,
)
from millstream.queue.model.message import messages_of
from millstream.queue.model.own_logs import INBOX


def _installed(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:  # spans are optional
        return None


_trace = _installed("opentelemetry.trace")
_contexts = _installed("opentelemetry.context")
_propagation = _installed("opentelemetry.trace.propagation.tracecontext")

HEADER = "traceparent"
CLAIMS_REMEMBERED = 10_000
"""Most messages in flight whose trace is remembered until their ack; the oldest are forgotten."""
LOOK_S = 1.0
"""How often the tracer looks whether OpenTelemetry is configured."""
SPANS_MAX = 100
"""Most spans for the messages of one claim or ack: large batches are not traced completely."""

_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)
_NAME = "millstream.server"


def traceparent_of(scope: Mapping[str, Any]) -> str | None:
    """Return the trace of a request: the server's own span, or the client's header."""
    server_span = scope.get("state", {}).get(HEADER)
    if server_span is not None:
        return str(server_span)
    values = [value for name, value in scope["headers"] if name == HEADER.encode()]
    if len(values) != 1:
        return None
    text = values[0].decode("latin-1").strip()
    return text if _TRACEPARENT.fullmatch(text) else None


def traced(command: Command[Any], traceparent: str, limits: Limits) -> Command[Any]:
    """Return a command whose records carry a trace; a trace set by the publisher stays."""
    if isinstance(command, Append | PutMessages | PutFresh | PutReported):
        records = add_header(command.records, HEADER, traceparent, limits)
        return replace(command, records=records)
    if isinstance(command, Transact):
        return Transact([traced(step, traceparent, limits) for step in command.steps])
    return command


def is_on() -> bool:
    """Whether OpenTelemetry is installed and configured."""
    return _trace is not None and not isinstance(
        _trace.get_tracer_provider(), _trace.ProxyTracerProvider
    )


@contextmanager
def request_span(scope: MutableMapping[str, Any]) -> Iterator[None]:
    """Run a request within a span.

    A socket is open for long, so it gets no span: its commands belong to the trace of its
    handshake.
    """
    if not is_on():
        yield
        return
    parent = _context(traceparent_of(scope))
    if scope["type"] != "http":
        reset = _contexts.attach(parent)
        try:
            yield
        finally:
            _contexts.detach(reset)
        return
    attributes = {"http.request.method": scope["method"], "url.path": scope["path"]}
    with _tracer().start_as_current_span(
        scope["method"], context=parent, kind=_trace.SpanKind.SERVER, attributes=attributes
    ) as span:
        scope["state"][HEADER] = _traceparent(span)
        yield


class Tracer:
    """The spans of commands. It remembers the traces of claimed messages."""

    def __init__(self) -> None:
        self._claimed: OrderedDict[tuple[str, int], str] = OrderedDict()
        self._is_on = False
        self._looks_s = -inf
        """When the tracer looks again whether OpenTelemetry is configured."""

    def is_on(self, now_s: float) -> bool:
        """Whether spans are made; as of a second ago, because to ask costs 1 µs per command."""
        if now_s >= self._looks_s:
            self._looks_s, self._is_on = now_s + LOOK_S, is_on()
        return self._is_on

    def begin(self, command: Command[Any], traceparent: str | None) -> list[Any] | None:
        """Begin the spans of a command that publishes or acknowledges; None without a span.

        The spans are not made current: a command that runs without a task has no context for them.
        """
        published = _published_to(command)
        if published is not None:
            span = _tracer().start_span(
                f"publish {published}",
                context=None if traceparent is None else _context(traceparent),
                kind=_trace.SpanKind.PRODUCER,
                attributes=_attributes("publish", published),
            )
            return [span]
        finished = [step for step in _steps(command) if isinstance(step, FinishClaims)]
        if isinstance(command, ClaimMessages) and command.acked:
            finished = [FinishClaims(command.queue, command.acked, "ack")]
        return self._finishing(finished) if finished and self._claimed else None

    def end(self, spans: list[Any], answer: Any) -> None:
        """End the spans of a command; an exception in the place of the answer is recorded."""
        for span in spans:
            if isinstance(answer, Exception):
                span.record_exception(answer)
                reason = f"{type(answer).__name__}: {answer}"
                span.set_status(_trace.Status(_trace.StatusCode.ERROR, reason))
            span.end()

    def answered(self, command: Command[Any], answer: Any) -> None:
        """Start a span for each claimed message, in the trace that published the message."""
        if not self._is_on or not isinstance(command, ClaimMessages) or not answer:
            return
        for message in messages_of(answer)[:SPANS_MAX]:
            parent = message.headers.get(HEADER)
            if not isinstance(parent, str) or not _TRACEPARENT.fullmatch(parent):
                continue
            with _message_span("claim", "receive", message.queue, message.claim_id, parent) as span:
                self._claimed[message.queue, message.claim_id] = _traceparent(span)
        while len(self._claimed) > CLAIMS_REMEMBERED:
            self._claimed.popitem(last=False)

    def _finishing(self, finished: list[FinishClaims]) -> list[Any]:
        """Begin a span for each finished claim whose trace is known."""
        spans = []
        for step in finished:
            for claim_id in _ids(step.claims):
                parent = self._claimed.pop((step.queue, claim_id), None)
                if parent is not None:
                    spans.append(
                        _message_span(step.outcome, "settle", step.queue, claim_id, parent)
                    )
        return spans


def _published_to(command: Command[Any]) -> str | None:
    """Return the log or queue to which a command publishes; an inbox counts as its queue."""
    for step in _steps(command):
        if isinstance(step, Append):
            return step.log.removeprefix(INBOX)
        if isinstance(step, PutMessages | PutFresh | PutReported):
            return step.queue
    return None


def _steps(command: Command[Any]) -> list[Any]:
    return command.steps if isinstance(command, Transact) else [command]


def _ids(claims: Iterable[Run]) -> Iterator[int]:
    spans_left = SPANS_MAX
    for first, count, _ in claims:
        traced_count = max(0, min(count, spans_left))
        yield from range(first, first + traced_count)
        spans_left -= traced_count


def _attributes(operation: str, name: str) -> dict[str, str]:
    return {
        "messaging.system": "millstream",
        "messaging.operation.type": operation,
        "messaging.destination.name": name,
    }


def _message_span(verb: str, operation: str, queue: str, claim_id: int, parent: str) -> Any:
    """Start a span for a message, in the trace that published the message."""
    return _tracer().start_span(
        f"{verb} {queue}",
        context=_context(parent),
        kind=_trace.SpanKind.CONSUMER,
        attributes={**_attributes(operation, queue), "messaging.message.id": str(claim_id)},
    )


def _tracer() -> Any:
    return _trace.get_tracer(_NAME)


def _context(traceparent: str | None) -> Any:
    carrier = {} if traceparent is None else {HEADER: traceparent}
    return _propagation.TraceContextTextMapPropagator().extract(carrier)


def _traceparent(span: Any) -> str:
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
