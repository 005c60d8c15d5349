"""Frames on a bare connection: however the bytes are cut, the same frames come out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.wire import framing
from millstream.wire.framing import CLOSE, CONTROL_BYTES_MAX, DATA, PING, PONG, BadFrame, Unframer

FRAMES = st.lists(
    st.tuples(st.just(DATA), st.binary(max_size=300))
    | st.tuples(st.sampled_from([CLOSE, PING, PONG]), st.binary(max_size=CONTROL_BYTES_MAX)),
    max_size=8,
)


@given(frames=FRAMES, data=st.data())
def test_frames_come_out_as_they_went_in_however_they_are_cut(
    frames: list[tuple[int, bytes]], data: st.DataObject
) -> None:
    sent = b"".join(framing.frame(found, kind) for kind, found in frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=10)))
    unframer = Unframer(300)
    came: list[tuple[int, bytes]] = []
    for start, stop in zip([0, *cuts], [*cuts, len(sent)], strict=True):
        came += unframer.feed(sent[start:stop])
    assert came == frames
    assert unframer.is_between


def test_a_frame_that_has_begun_is_known_to_be_unfinished() -> None:
    unframer = Unframer(10)
    assert unframer.feed(framing.frame(b"abc")[:-1]) == []
    assert not unframer.is_between
    assert unframer.feed(b"c") == [(DATA, b"abc")]
    assert unframer.is_between


@pytest.mark.parametrize(
    ("head", "too_large"),
    [
        (framing.HEAD.pack(DATA, 11), True),
        (framing.HEAD.pack(DATA, 2**32 - 1), True),
        (framing.HEAD.pack(PING, CONTROL_BYTES_MAX + 1), True),
        (framing.HEAD.pack(4, 0), False),
        (b"GET / HTTP/1.1\r\n", False),
    ],
)
@pytest.mark.parametrize("before", [b"", framing.frame(b"x")])
def test_what_is_no_frame_is_refused_by_its_head(
    head: bytes, too_large: bool, before: bytes
) -> None:
    with pytest.raises(BadFrame) as refused:
        Unframer(10).feed(before + head)
    assert refused.value.is_too_large is too_large


@pytest.mark.parametrize("size", [0, framing.COPIED_BYTES_MAX, framing.COPIED_BYTES_MAX + 1])
def test_pieces_are_the_frame(size: int) -> None:
    assert b"".join(framing.pieces(bytes(size))) == framing.frame(bytes(size))


def test_the_last_frame_says_why() -> None:
    ((kind, data),) = Unframer(10).feed(framing.close_frame(1008, "é" * 200))
    assert kind == CLOSE
    assert len(data) <= CONTROL_BYTES_MAX
    assert framing.read_close(data) == (1008, "é" * 61)
    assert framing.read_close(b"") == (1005, "")
