"""Arguments of tasks: what arrives is what was put, and anything else is refused by name."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import InvalidInput
from millstream.jobs.arguments import Arguments, BoundCall


@dataclass
class Mail:
    to: str
    copies: int = 1


class Point(msgspec.Struct):
    x: float


class Colour(enum.Enum):
    RED = "red"


def rich(
    mail: Mail,
    point: Point,
    when: datetime,
    ident: UUID,
    price: Decimal,
    raw: bytes,
    colour: Colour,
    tags: set[str],
    pair: tuple[int, str],
) -> None: ...


def test_annotated_types_arrive_as_themselves() -> None:
    args = (
        Mail("ada"),
        Point(0.5),
        datetime(2026, 11, 18, 5, tzinfo=UTC),
        UUID(int=7),
        Decimal("1.10"),
        b"\xff\x00",
        Colour.RED,
        {"a", "b"},
        (1, "x"),
    )
    codec = Arguments(rich, "m:rich")

    assert codec.decode(codec.encode(args, {})) == BoundCall(args, {})


def various(
    first: int, second: str = "x", *rest: int, flag: bool = False, **named: float
) -> None: ...


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((1,), {}),
        ((1, "y"), {}),
        ((1, "y", 2, 3), {"flag": True}),
        ((1,), {"flag": True, "a": 0.5}),
    ],
)
def test_a_call_arrives_as_it_was_made(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    codec = Arguments(various, "m:various")

    assert codec.decode(codec.encode(args, kwargs)) == BoundCall(args, kwargs)


def test_the_object_is_readable_by_parameter() -> None:
    stored = Arguments(various, "m:various").encode((1, "y", 2), {"a": 0.5})

    assert msgspec.json.decode(stored) == {
        "first": 1,
        "second": "y",
        "rest": [2],
        "named": {"a": 0.5},
    }


@pytest.mark.parametrize(
    ("args", "kwargs", "says"),
    [
        ((), {}, "missing a required argument: 'first'"),
        (("x",), {}, "argument 'first': expected `int`, got `str`"),
        (("x",), {}, r"it takes \(first: int, second: str = 'x', \*rest: int, flag: bool = False,"),
        ((1, 2), {}, "argument 'second': expected `str`"),
        ((1, "x", "y"), {}, r"argument 'rest\[0\]': expected `int`"),
        ((1,), {"flag": "yes"}, "argument 'flag': expected `bool`"),
        ((object(),), {}, r"argument 'first' \(object\) cannot be encoded"),
        ((1, "\ud800"), {}, r"argument 'second' \(str\) cannot be encoded"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(
    args: tuple[Any, ...], kwargs: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidInput, match=says):
        Arguments(various, "m:various").encode(args, kwargs)


def plain(value):  # type: ignore[no-untyped-def]
    ...


@pytest.mark.parametrize("value", [b"x", {1: 2}, {1, 2}, UUID(int=1), [b"x"]])
def test_without_an_annotation_nothing_arrives_as_another_value(value: Any) -> None:
    with pytest.raises(InvalidInput, match="argument 'value'"):
        Arguments(plain, "m:plain").encode((value,), {})


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**63)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(exclude_categories=["Cs"])),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner)
        ),
        max_leaves=10,
    )
)
def test_plain_values_arrive_unchanged(value: Any) -> None:
    codec = Arguments(plain, "m:plain")

    assert codec.decode(codec.encode((value,), {})) == BoundCall((value,), {})


def test_a_value_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)

    with pytest.raises(InvalidInput, match="'value'"):
        Arguments(plain, "m:plain").encode((endless,), {})


@pytest.mark.parametrize(
    "stored", [b"", b"[]", b"{", b"{}", b'{"first": "x"}', b'{"first": 1, "other": 2}', b"\xff"]
)
def test_stored_arguments_that_do_not_fit_are_refused(stored: bytes) -> None:
    with pytest.raises(InvalidInput, match="m:various"):
        Arguments(various, "m:various").decode(stored)


def with_context(context: object, name: str) -> None: ...


def test_the_parameter_of_the_worker_is_no_argument() -> None:
    codec = Arguments(with_context, "m:task", omitted="context")

    assert codec.decode(codec.encode(("ada",), {})) == BoundCall(("ada",), {})
    with pytest.raises(InvalidInput, match="context"):
        codec.encode((), {"context": 1, "name": "ada"})


def test_a_text_is_no_bytes() -> None:
    def store(
        name: Annotated[str, {"a": "mark"}], data: bytes, more: bytes | None = None
    ) -> None: ...

    codec = Arguments(store, "m:store")
    assert codec.decode(codec.encode(("a", b"abcd"), {})).args == ("a", b"abcd")
    for args in [("a", "abcd"), ("a", b"", "abcd")]:
        with pytest.raises(InvalidInput, match="expected `bytes`, got `str`"):
            codec.encode(args, {})


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_json_does_not_have_is_refused_by_name(number: float) -> None:
    def note(low: float | None, rows: list[Any], when: object = None) -> None: ...

    codec = Arguments(note, "m:note")
    assert codec.decode(codec.encode((None, [None, 1.5]), {})).args[:2] == (None, [None, 1.5])
    with pytest.raises(InvalidInput, match="argument 'low': expected finite numbers"):
        codec.encode((number, []), {})
    with pytest.raises(InvalidInput, match="argument 'rows': expected finite numbers"):
        codec.encode((None, [{"a": (1, number)}]), {})
    with pytest.raises(InvalidInput, match="argument 'rows': expected finite numbers"):
        codec.encode_after(([number],), {})
