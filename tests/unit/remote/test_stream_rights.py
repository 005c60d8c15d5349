"""Producers and consumers over a server that refuses them: whose handles fail, and what is stored."""

from __future__ import annotations

from pathlib import Path

import pytest

import millstream
from millstream import Millstream
from millstream.errors import Denied, MillstreamError
from millstream.server.auth.register import Registrar
from millstream.server.auth.tokens import create_token
from millstream.server.serving import running
from millstream.server.settings import Settings


def test_a_client_without_the_right_learns_it_from_its_handles_and_stores_nothing(
    tmp_path: Path,
) -> None:
    with millstream.open(tmp_path / "a.db") as ms:
        ms.log("theirs").append(b"first")
        ms.create_queue("jobs").put_many(range(3))
        _, token = create_token(ms, "writer", ["log:write:mine"])
    with (
        running(tmp_path / "a.db", Settings(port=0, auth="on")) as server,
        millstream.open(server.url, token=token) as ms,
    ):
        producer = ms.log("theirs").producer()
        handle = producer.append(b"second")
        with pytest.raises(Denied):
            handle.offset()
        with pytest.raises(Denied):
            producer.append(b"third").offset()
        producer.close()
        with ms.log("mine").producer() as allowed:
            assert allowed.append(b"stored").offset() == 0
        with pytest.raises(Denied), ms.queue("jobs").consumer():
            pass
    with millstream.open(tmp_path / "a.db") as ms:
        assert [record.value for record in ms.log("theirs").read()] == [b"first"]
        assert ms.queue("jobs").info().in_flight == 0


def test_a_loop_whose_token_is_revoked_ends_with_an_error(tmp_path: Path) -> None:
    with millstream.open(tmp_path / "a.db") as ms:
        jobs = ms.create_queue("jobs")
        jobs.put_many(range(1_000))
        _, token = create_token(ms, "worker", ["*:admin"])
        seen = []

        def consume(client: Millstream) -> None:
            with client.queue("jobs").consumer(prefetch=10, timeout=60) as consumer:
                for message in consumer:
                    consumer.ack(message)
                    seen.append(message.json())
                    if len(seen) == 100:
                        Registrar(ms).revoke("worker")

        with (
            running(tmp_path / "a.db", Settings(port=0, auth="on")) as server,
            millstream.open(server.url, token=token, retry_for=1.0) as client,
            pytest.raises(MillstreamError),
        ):
            consume(client)
        assert seen == [*range(len(seen))]
        assert len(seen) >= 100
