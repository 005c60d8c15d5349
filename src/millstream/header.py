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
    """The source of the headers: packed bytes, or the value of a caller."""
    _plain: Plain | None = None

    def __getitem__(self, name: str) -> HeaderValue:
        headers = self._plain or self.plain()
        return headers[name] if type(headers) is dict else dict(headers)[name]

    @overload
    def get(self, name: str, /) -> HeaderValue: ...
    @overload
    def get(self, name: str, /, default: HeaderValue | T) -> HeaderValue | T: ...
    def get(self, name: str, /, default: Any = None) -> Any:
        """The last value of a name, or `default` if there is none."""
        headers = self._plain or self.plain()
        return (headers if type(headers) is dict else dict(headers)).get(name, default)

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
        return [value for each, value in self.pairs() if each == name]

    def pairs(self) -> list[Pair]:
        """Every name with its value, in order, repeated names included."""
        headers = self.plain()
        return list(headers.items() if isinstance(headers, dict) else headers)

    def replaced(self, name: str, value: HeaderValue) -> Headers:
        """Return a copy with a single header of this name."""
        headers = self.plain()
        if isinstance(headers, dict):
            return Headers({**headers, name: value})
        return Headers([*[pair for pair in headers if pair[0] != name], (name, value)])

    def visible(self) -> dict[str, Scalar]:
        """Return the view of a filter: the last value of each name, and NULL for bytes."""
        return visible(self._last())

    def shown(self) -> dict[str, Any] | list[tuple[str, Any]]:
        """Return the headers as JSON: an object, or pairs if a name repeats; bytes are {"base64":
        …}."""
        headers = self.plain()
        if isinstance(headers, dict):
            return {name: _shown(value) for name, value in headers.items()}
        return [(name, _shown(value)) for name, value in headers]

    def plain(self) -> Plain:
        """Return the headers as a dict, or as pairs if a name repeats. The caller must not change
        them."""
        plain = self._plain
        if plain is None:
            held = self.held
            if type(held) is not bytes:
                plain = as_plain(held)  # type: ignore[arg-type]
            else:
                try:
                    plain = _decode(held) if held else {}
                except (msgspec.MsgspecError, ValueError) as error:
                    raise CorruptionError(f"headers: {error}", what="headers", where=0) from error
            force_setattr(self, "_plain", plain)
        return plain

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
        headers = self.plain()
        return repr(headers) if isinstance(headers, dict) else f"Headers({list(headers)!r})"

    def __reduce__(self) -> tuple[type[Headers], tuple[bytes | HeadersLike]]:
        return Headers, (self.held,)

    def _last(self) -> dict[str, HeaderValue]:
        headers = self.plain()
        return headers if isinstance(headers, dict) else dict(headers)


NO_HEADERS = Headers()


def visible(headers: HeaderMapping) -> dict[str, Scalar]:
    """Headers as a filter sees them: NULL in place of bytes."""
    return {name: None if type(value) is bytes else value for name, value in headers.items()}  # type: ignore[misc]


def as_plain(headers: HeadersLike) -> Plain:
    """Return the headers of a caller as a dict, or as pairs if a name repeats.

    Other values raise `InvalidInput`. Header values are not checked.
    """
    if type(headers) is dict:
        return headers
    if type(headers) is Headers:
        return headers.plain()
    if isinstance(headers, Mapping):
        return dict(headers)
    if not isinstance(headers, list | tuple):
        raise InvalidInput(
            "headers are a mapping, or a list of pairs of a name and a value; not "
            f"{type(headers).__name__}"
        )
    pairs = tuple([_pair(item) for item in headers])
    by_name = dict(pairs)
    return by_name if len(by_name) == len(pairs) else pairs


def _pair(item: object) -> Pair:
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise InvalidInput(
            f"headers that are a list have pairs of a name and a value; one is {item!r:.100}"
        )
    name, value = item
    if not isinstance(name, str):
        raise InvalidInput(f"the name of a header is text, not {name!r:.100}")
    return name, value


def _shown(value: HeaderValue) -> Any:
    return {"base64": b64encode(value).decode()} if isinstance(value, bytes) else value
