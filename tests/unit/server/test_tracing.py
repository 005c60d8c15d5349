"""Traces: carried in headers always; as spans where OpenTelemetry is set up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream.format.packing import pack_single
from millstream.limits import Limits
from millstream.log.commands import Append
from millstream.queue.commands import ClaimMessages, FinishClaims
from millstream.queue.model.message import messages_of
from millstream.server.auth.access import ANYONE_HERE
from millstream.server.docs.endpoints import routes
from millstream.server.observe.tracing import CLAIMS_REMEMBERED, is_on, traceparent_of
from millstream.server.serving import running
from millstream.server.settings import Settings
from tests.unit.server.guarded import Guarded, guarded, in_loop
from tests.unit.server.talking import single, talking

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


async def publish(at: Guarded, **headers: str) -> None:
    """A message put over REST."""
    body = {"value": "x", "headers": {"kind": "order"}}
    answer = await at.ask("POST", "/queues/mail/messages", json=body, headers=headers)
    assert answer.status_code == 201, answer.text


async def claim(at: Guarded, **more: Any) -> Any:
    command = ClaimMessages("mail", 10, None, "c", None, more.pop("acked", []))
    return messages_of(await at.core.execute(ANYONE_HERE, command))


def scope(*values: str) -> dict[str, Any]:
    return {"headers": [(b"traceparent", value.encode()) for value in values]}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        PARENT.upper(),
        f"ff-{TRACE}-00f067aa0ba902b7-01",
        f"00-{'0' * 32}-00f067aa0ba902b7-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"{PARENT}-more",
        PARENT[:-1],
    ],
)
def test_what_is_no_trace_is_not_carried(text: str) -> None:
    assert traceparent_of(scope(text)) is None
    assert traceparent_of(scope(PARENT, PARENT)) is None
    assert traceparent_of(scope(PARENT)) == PARENT


def test_without_opentelemetry_set_up_the_header_is_carried_and_nothing_else_happens() -> None:
    async def test() -> None:
        assert not is_on()
        async with guarded(Settings(), extra=routes) as at:
            at.ms.queue("mail", max_attempts=3)
            await publish(at, traceparent=PARENT)
            (message,) = await claim(at)
            assert message.headers["kind"] == "order"
            assert message.headers["traceparent"] == PARENT
            assert not at.core.admission.tracer._claimed

    in_loop(test)


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Any:
    """OpenTelemetry set up for one test: spans are kept in memory."""
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    found = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(found))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return found


def spans(exporter: Any) -> dict[str, Any]:
    return {span.name: span for span in exporter.get_finished_spans()}


def test_publish_claim_and_ack_are_spans_of_one_trace(exporter: Any) -> None:
    async def test() -> None:
        async with guarded(Settings(), extra=routes) as at:
            at.ms.queue("mail", max_attempts=3)
            await publish(at, traceparent=PARENT)
            (message,) = await claim(at)
            runs = [(message.claim_id, 1, message.attempt)]
            await at.core.execute(ANYONE_HERE, FinishClaims("mail", runs, "ack"))
        found = spans(exporter)
        assert set(found) == {"POST", "publish mail", "claim mail", "ack mail"}
        assert {f"{span.context.trace_id:032x}" for span in found.values()} == {TRACE}
        assert f"{found['POST'].parent.span_id:016x}" == "00f067aa0ba902b7"
        request = found["POST"].context.span_id
        assert found["publish mail"].parent.span_id == request
        assert found["claim mail"].parent.span_id == request
        assert found["ack mail"].parent.span_id == found["claim mail"].context.span_id
        assert found["ack mail"].attributes["messaging.message.id"] == str(message.claim_id)

    in_loop(test)


def test_a_consumer_over_rest_is_part_of_the_trace(exporter: Any) -> None:
    async def test() -> None:
        async with guarded(Settings(), extra=routes) as at:
            at.ms.queue("mail", max_attempts=3)
            await publish(at, traceparent=PARENT)
            answer = await at.ask("POST", "/queues/mail/claims", json={})
            (message,) = answer.json()["messages"]
            await at.ask("POST", "/queues/mail/ack", json={"claims": [message["claim"]]})
        found = spans(exporter)
        assert f"{found['claim mail'].context.trace_id:032x}" == TRACE
        assert found["ack mail"].parent.span_id == found["claim mail"].context.span_id

    in_loop(test)


def test_a_consumer_over_a_socket_is_part_of_the_trace(exporter: Any, tmp_path: Path) -> None:
    with (
        running(tmp_path / "store.db", Settings(port=0), durability="relaxed") as server,
        millstream.open(server.url) as ms,
        talking(server, additional_headers={"traceparent": PARENT}) as talk,
    ):
        queue = ms.queue("mail", max_attempts=3)
        talk.ask(Append("queue:mail", single("x")))
        (message,) = queue.claim(1)
        queue.ack(message)
    found = spans(exporter)
    assert {"publish mail", "claim mail", "ack mail"} <= set(found)
    assert {f"{found[name].context.trace_id:032x}" for name in ("claim mail", "ack mail")} == {
        TRACE
    }
    assert found["ack mail"].parent.span_id == found["claim mail"].context.span_id


def test_a_request_without_a_trace_begins_one(exporter: Any) -> None:
    async def test() -> None:
        async with guarded(Settings(), extra=routes) as at:
            at.ms.queue("mail", max_attempts=3)
            await publish(at)
            (message,) = await claim(at)
            again = await claim(at, acked=[(message.claim_id, 1, message.attempt)])
            assert again == []
        found = spans(exporter)
        assert set(found) == {"POST", "publish mail", "claim mail", "ack mail"}
        assert len({span.context.trace_id for span in found.values()}) == 1
        assert found["POST"].parent is None

    in_loop(test)


def test_messages_without_a_trace_get_no_spans_and_nothing_is_kept_for_ever(exporter: Any) -> None:
    async def test() -> None:
        async with guarded(Settings()) as at:
            queue = at.ms.queue("mail", max_attempts=3)
            queue.put_many([b"a", b"b"], headers=[None, {"traceparent": "nonsense"}])
            assert len(await claim(at)) == 2
            assert spans(exporter) == {}
            queue.put(b"c", headers={"traceparent": PARENT})
            tracer = at.core.admission.tracer
            tracer._claimed.update({("old", n): PARENT for n in range(CLAIMS_REMEMBERED)})
            assert len(await claim(at)) == 1
            assert len(tracer._claimed) == CLAIMS_REMEMBERED
            assert ("old", 0) not in tracer._claimed

    in_loop(test)


def test_a_sockets_commands_belong_to_the_trace_it_was_opened_with(exporter: Any) -> None:
    async def test() -> None:
        async with guarded(Settings()) as at:
            record = pack_single(b"x", key=None, headers=None, timestamp=None, limits=Limits())

            async def app(scope: Any, receive: Any, send: Any) -> None:
                await at.core.execute(scope["state"]["principal"], Append("orders", record))
                await send({"type": "websocket.accept"})

            at.app.app = app
            await at.upgrade(headers={"traceparent": PARENT})
        found = spans(exporter)
        assert f"{found['publish orders'].context.trace_id:032x}" == TRACE

    in_loop(test)
