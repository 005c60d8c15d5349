"""Headers of a record: names with values, in order; a name may stand there several times.

They read as a mapping in which the last value of a name counts, and as pairs. What was read stays
packed until it is looked at.
"""

from __future__ import annotations

from abc import ABCMeta
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar, overload

import msgspec
from msgspec import Struct, StructMeta
from msgspec.structs import force_setattr

from millstream.errors import CorruptionError, InvalidInput

Scalar = str | int | float | bool | None
"""What a filter sees of a header; integers are 64-bit."""

HeaderValue = Scalar | bytes
"""What a header may hold; a filter takes bytes for NULL."""

Pair = tuple[str, HeaderValue]

HeaderMapping = Mapping[str, HeaderValue]

HeadersLike = HeaderMapping | Sequence[Pair]
"""What callers may hand in as headers: a mapping, or pairs as Kafka has them."""

Plain = dict[str, HeaderValue] | tuple[Pair, ...]
"""Headers as a dict, or as pairs if a name is repeated."""

T = TypeVar("T")

_decode = msgspec.msgpack.Decoder(dict[str, Any] | tuple[tuple[str, Any], ...]).decode


class _Meta(StructMeta, ABCMeta):
    """Of a class that is a struct, because that is made fastest, and a mapping."""


class Headers(Struct, Mapping[str, HeaderValue], metaclass=_Meta, frozen=True, gc=False, eq=False):
    """The headers of one record: a mapping of each name to its last value, and all pairs in order.

    They are equal to a mapping of the same names and values, if no name is repeated, and to a
    sequence of the same pairs.
    """

    held: bytes | HeadersLike = b""
    """What they were made of: packed, or as a caller gave them."""
    _plain: Plain | None = None

    def __getitem__(self, name: str) -> HeaderValue:
        found = self._plain or self.plain()
        return found[name] if type(found) is dict else dict(found)[name]

    @overload
    def get(self, name: str, /) -> HeaderValue: ...
    @overload
    def get(self, name: str, /, default: HeaderValue | T) -> HeaderValue | T: ...
    def get(self, name: str, /, default: Any = None) -> Any:
        """The last value of a name, or `default` if there is none."""
        found = self._plain or self.plain()
        return (found if type(found) is dict else dict(found)).get(name, default)

    def __contains__(self, name: object) -> bool:
        return name in self._last()

    def __iter__(self) -> Iterator[str]:
        return iter(self._last())

    def __len__(self) -> int:
        """How many names there are."""
        return len(self._last())

    def __bool__(self) -> bool:
        return bool(self.held) and bool(self.plain())

    def all(self, name: str) -> list[HeaderValue]:
        """Every value of a name, in order."""
        return [value for found, value in self.pairs() if found == name]

    def pairs(self) -> list[Pair]:
        """Every name with its value, in order, repeated names included."""
        found = self.plain()
        return list(found.items() if isinstance(found, dict) else found)

    def replaced(self, name: str, value: HeaderValue) -> Headers:
        """The same with one header of a name, in place of all that it had."""
        found = self.plain()
        if isinstance(found, dict):
            return Headers({**found, name: value})
        return Headers([*[one for one in found if one[0] != name], (name, value)])

    def visible(self) -> dict[str, Scalar]:
        """What a filter sees: the last value of each name, and NULL in place of bytes."""
        return visible(self._last())

    def shown(self) -> dict[str, Any] | list[tuple[str, Any]]:
        """As JSON has them: an object, or pairs if a name is repeated; bytes are {"base64": …}."""
        found = self.plain()
        if isinstance(found, dict):
            return {name: _shown(value) for name, value in found.items()}
        return [(name, _shown(value)) for name, value in found]

    def plain(self) -> Plain:
        """The headers as a dict, or as pairs if a name is repeated; not the caller's to change."""
        found = self._plain
        if found is None:
            held = self.held
            if type(held) is not bytes:
                found = as_plain(held)  # type: ignore[arg-type]
            else:
                try:
                    found = _decode(held) if held else {}
                except (msgspec.MsgspecError, ValueError) as error:
                    raise CorruptionError(f"headers: {error}", what="headers", where=0) from error
            force_setattr(self, "_plain", found)
        return found

    def __eq__(self, other: object) -> bool:
        mine = self.plain()
        if isinstance(other, Headers):
            return mine == other.plain()
        if isinstance(other, Mapping):
            return isinstance(mine, dict) and mine == other
        if isinstance(other, list | tuple):
            return self.pairs() == list(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        found = self.plain()
        return repr(found) if isinstance(found, dict) else f"Headers({list(found)!r})"

    def __reduce__(self) -> tuple[type[Headers], tuple[bytes | HeadersLike]]:
        return Headers, (self.held,)

    def _last(self) -> dict[str, HeaderValue]:
        found = self.plain()
        return found if isinstance(found, dict) else dict(found)


NO_HEADERS = Headers()


def visible(found: HeaderMapping) -> dict[str, Scalar]:
    """Headers as a filter sees them: NULL in place of bytes."""
    return {name: None if type(one) is bytes else one for name, one in found.items()}  # type: ignore[misc]


def as_plain(given: HeadersLike) -> Plain:
    """What a caller gives, as a dict; or as pairs, if a name is repeated.

    Anything else is `InvalidInput`. The values are not looked at.
    """
    if type(given) is dict:
        return given
    if type(given) is Headers:
        return given.plain()
    if isinstance(given, Mapping):
        return dict(given)
    if not isinstance(given, list | tuple):
        raise InvalidInput(
            "headers are a mapping, or a list of pairs of a name and a value; not "
            f"{type(given).__name__}"
        )
    pairs = tuple([_pair(one) for one in given])
    found = dict(pairs)
    return found if len(found) == len(pairs) else pairs


def _pair(one: object) -> Pair:
    if not isinstance(one, tuple | list) or len(one) != 2:
        raise InvalidInput(
            f"headers that are a list have pairs of a name and a value; one is {one!r:.100}"
        )
    name, value = one
    if not isinstance(name, str):
        raise InvalidInput(f"the name of a header is text, not {name!r:.100}")
    return name, value


def _shown(value: HeaderValue) -> Any:
    return {"base64": b64encode(value).decode()} if isinstance(value, bytes) else value
