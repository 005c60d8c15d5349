"""The references between rows, which the scrub checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from millstream.engine.protocol import Reference
from millstream.store.state.view import View


class Links(NamedTuple):
    """The references between rows, declared by the parts above the store and checked by the scrub."""

    needs: Reference
    lost: Callable[[View, bytes, bytes], str]
    """Describes the loss if the second row is missing and the first row needs it; empty without a loss."""


NO_LINKS = Links(lambda _key, _value: None, lambda _view, _parent, _child: "")
