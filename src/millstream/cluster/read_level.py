"""How fresh a read of a cluster must be: the level that a caller asks for, as text and as a value.

strong        everything that any caller was told before the read began; the leading node answers
bounded:5     the asked node answers by itself if it is at most 5 seconds behind, else as strong
eventual      the asked node answers from what it has
"""

from __future__ import annotations

import math
from typing import Literal

from msgspec import Struct

from millstream.errors import InvalidInput

READ_LEVEL_HEADER = "millstream-read"
"""The header by which a request, or the opening of a socket, names its level."""

HOP_HEADER = "millstream-hop"
"""The header of a request that a node hands on: the receiving node never hands it on again."""

LAG_S_MAX = 86_400.0


class ReadLevel(Struct, frozen=True):
    """A level; only `bounded` uses `lag_s_max`."""

    kind: Literal["strong", "bounded", "eventual"] = "strong"
    lag_s_max: float = 0.0

    def __str__(self) -> str:
        return f"bounded:{self.lag_s_max:g}" if self.kind == "bounded" else self.kind


STRONG = ReadLevel()


def parse_read_level(text: str) -> ReadLevel:
    """Parse a level as callers write it."""
    kind, _, lag = text.strip().lower().partition(":")
    if kind in ("strong", "eventual") and not lag:
        return ReadLevel(kind)  # type: ignore[arg-type]
    if kind == "bounded":
        try:
            lag_s = float(lag)
        except ValueError:
            lag_s = math.nan
        if 0 <= lag_s <= LAG_S_MAX:
            return ReadLevel("bounded", lag_s)
    raise InvalidInput(
        "a read level is 'strong', 'eventual', or 'bounded:SECONDS' with up to "
        f"{LAG_S_MAX:,.0f} seconds, such as 'bounded:5'; not {text[:40]!r}"
    )
