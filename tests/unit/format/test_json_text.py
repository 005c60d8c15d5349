"""JSON texts: one counts as JSON only if a reader can decode it."""

from __future__ import annotations

import json

import msgspec
import pytest

from millstream.errors import InvalidInput
from millstream.format.json_text import check_json_text, is_json_text

SOUND = [b"1", b" null ", b'{"a": [1e308, -0.0, 1e-999]}', b"1" + b"0" * 4_000, '"é"'.encode()]
NONE = [
    b"",
    b"1e999",
    b"[-1e400]",
    b"1" + b"0" * 5_000,
    b"NaN",
    b"[Infinity]",
    b"[1,]",
    rb'"\ud800"',
    b'"\xff"',
    b"[" * 100_000 + b"]" * 100_000,
]


@pytest.mark.parametrize("data", SOUND, ids=lambda data: ascii(data[:20]))
def test_what_readers_can_decode_is_json(data: bytes) -> None:
    assert is_json_text(data)
    check_json_text(data, "this")
    assert msgspec.json.decode(data) == json.loads(data)


@pytest.mark.parametrize("data", NONE, ids=lambda data: ascii(data[:20]))
def test_what_they_cannot_is_refused_by_its_name(data: bytes) -> None:
    assert not is_json_text(data)
    with pytest.raises(InvalidInput, match=r"^the 'value' is JSON that readers can decode: "):
        check_json_text(data, "the 'value'")
