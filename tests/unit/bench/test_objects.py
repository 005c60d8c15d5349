"""A server of objects for tests: it must keep the promises that a real one keeps."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterable
from typing import Any

from millstream.bench.objects import one_write_at_a_time


def request(method: str, body: bytes = b"") -> dict[str, Any]:
    return {
        "REQUEST_METHOD": method,
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": io.BytesIO(body),
    }


def test_a_condition_that_was_looked_at_holds_until_the_object_is_stored() -> None:
    stored: list[bytes] = []
    others: list[threading.Thread] = []

    def check_then_store(environ: dict[str, Any], _: object) -> Iterable[bytes]:
        if stored:
            return [b"it is there"]
        if not others:  # another request comes between the two steps
            others.append(threading.Thread(target=handle, args=(request("PUT", b"b"), None)))
            others[0].start()
            others[0].join(timeout=0.2)
        stored.append(environ["wsgi.input"].read())
        return [b"stored"]

    handle = one_write_at_a_time(check_then_store)
    assert list(handle(request("PUT", b"a"), None)) == [b"stored"]
    others[0].join()
    assert stored == [b"a"]


def test_reads_wait_for_no_write() -> None:
    def read_while_writing(environ: dict[str, Any], _: object) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] == "PUT":
            return handle(request("GET"), None)
        return [b"read"]

    handle = one_write_at_a_time(read_while_writing)
    assert list(handle(request("PUT"), None)) == [b"read"]


def test_a_body_without_a_length_is_stored_whole() -> None:
    stored: list[bytes] = []

    def store(environ: dict[str, Any], _: object) -> Iterable[bytes]:
        stored.append(environ["wsgi.input"].read())
        return [b"stored"]

    chunked = request("PUT", b"in chunks") | {"CONTENT_LENGTH": "", "wsgi.input_terminated": True}
    assert list(one_write_at_a_time(store)(chunked, None)) == [b"stored"]
    assert stored == [b"in chunks"]
