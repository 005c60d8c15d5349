"""Parts of a frame: weighed before anything is decoded, since each becomes an object in memory.

A byte can be an empty array, which takes a hundred bytes once it is decoded. So a frame is first
walked through by the heads of its parts; text and bytes are stepped over whole.

    head        what follows it
    0x80–0x9f   a short map or array: its entries are parts of their own
    0xa0–0xbf   short text
    0xc4–0xc6   bytes, with a length of 1, 2 or 4 bytes
    0xc7–0xc9   an extension, with such a length and a byte for its type
    0xca–0xd8   numbers and extensions of a fixed size
    0xd9–0xdb   text, with a length of 1, 2 or 4 bytes
    0xdc–0xdf   a long array or map: its count only
    the rest    nothing: small numbers, nil, true, false
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

WEIGHT_MAX = 1_500_000
"""Of one frame: a hundred thousand claims fit, each with its number, attempt and count."""

CONTAINER_WEIGHT = 10
"""Of an array or a map: it takes more memory than a number, and more of the collector's time."""

_STEPS = [1] * 256
"""How many bytes a part takes, its head included; 0 where a length follows the head."""
for _head in range(0xA0, 0xC0):
    _STEPS[_head] = 1 + _head - 0xA0
for _head, _size in zip(range(0xCA, 0xD4), (4, 8, 1, 2, 4, 8, 1, 2, 4, 8), strict=True):
    _STEPS[_head] = 1 + _size
for _head, _size in zip(range(0xD4, 0xD9), (1, 2, 4, 8, 16), strict=True):
    _STEPS[_head] = 2 + _size
for _head, _size in zip(range(0xDC, 0xE0), (2, 4, 2, 4), strict=True):
    _STEPS[_head] = 1 + _size

_LENGTHS = {0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1)}
_LENGTHS |= {0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0)}
"""How many bytes the length takes, and how many more come before the content."""

for _head in _LENGTHS:
    _STEPS[_head] = 0

_WEIGHTS = [
    CONTAINER_WEIGHT if 0x80 <= head < 0xA0 or 0xDC <= head < 0xE0 else 1 for head in range(256)
]


def weigh(data: bytes, most: int = WEIGHT_MAX) -> int:
    """Return the weight of the parts of a MessagePack text; beyond `most` the count may stop early.

    Other bytes get an arbitrary weight: the decoder will refuse them.
    """
    steps, weights, size, at, weight = _STEPS, _WEIGHTS, len(data), 0, 0
    while at < size and weight <= most:
        head = data[at]
        step = steps[head]
        if not step:
            width, extra = _LENGTHS[head]
            step = 1 + width + extra + int.from_bytes(data[at + 1 : at + 1 + width], "big")
        at += step
        weight += weights[head]
    return weight


def decode_at_once(decode: Callable[[], T]) -> T:
    """Decode a large frame while the garbage collector is off.

    The collector would look at all new objects again and again: 490,000 objects took 270 ms with the
    collector, and take 40 ms without.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        return decode()
    finally:
        if was_on:
            gc.enable()
