"""What tests with a faulty object store do and look at: careful callers, refusals, records."""

from __future__ import annotations

from millstream import Millstream, Producer
from millstream.bench.objects import ObjectAnswer
from millstream.errors import Fenced, MillstreamError, Poisoned


def refusal(status: int, code: str) -> ObjectAnswer:
    """An answer of S3 by which it refuses a request."""
    return status, [], f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()


def values(ms: Millstream) -> list[bytes]:
    """The records of the log."""
    return [record.value for record in ms.log("a").read()]


def append_until_it_works(ms: Millstream, value: bytes, producer: Producer) -> None:
    """As a careful caller does: what is not certain is repeated under the same sequence."""
    while True:
        try:
            ms.log("a").append(value, producer=producer)
            return
        except (Fenced, Poisoned):
            raise
        except MillstreamError:
            continue
