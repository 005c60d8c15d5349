"""Numbers that callers hand to a noun, checked by the annotations of its methods.

`@checked_numbers` on a class wraps each public method that has a parameter for a number. A whole
number (`int`) is an integer, or an object with `__index__`, such as an integer of numpy. A duration
(`Seconds`) is a finite number of seconds or a `timedelta`. A rate (`float`) is a finite number. A
bool is no number. Other values raise `InvalidInput` with the name of the parameter, before the
method begins. The method itself checks the range.

Checks in each method would be forgotten in new methods.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import wraps
from operator import index
from typing import Any, TypeVar, cast

from millstream.errors import InvalidInput

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Check = Callable[[str, Any], Any]
"""From the name of a parameter and its value to the value that the method gets."""

NUMBER_MAX = 2**63 - 1
BITS_MAX = 128
"""Of a whole number: each method has an answer for one that is too large, but not without end."""

_NUMERIC = re.compile(r"\b(int|float|Seconds)\b")


def checked_numbers(noun: type[T]) -> type[T]:
    """Check the numbers that the public methods of a class are given."""
    for name, method in list(vars(noun).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(noun, name, checked(method))
    return noun


def checked(function: F) -> F:
    """Return the function, wrapped in checks if it has parameters for numbers."""
    parameters = inspect.signature(function).parameters
    by_name: dict[str, Check] = {}
    by_place: list[tuple[int, str, Check]] = []
    for place, (name, parameter) in enumerate(parameters.items()):
        check = check_of(parameter.annotation)
        if check is not None:
            by_name[name] = check
            if parameter.kind is not parameter.KEYWORD_ONLY:
                by_place.append((place, name, check))
    if not by_name:
        return function

    def given(arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """Check what was given by name in place, and return what was given by place."""
        for name in named:
            if (check := by_name.get(name)) is not None:
                named[name] = check(name, named[name])
        if by_place and len(arguments) > by_place[0][0]:
            checked = list(arguments)
            for place, name, check in by_place:
                if place < len(checked):
                    checked[place] = check(name, checked[place])
            return tuple(checked)
        return arguments

    first = by_place[0][0] if by_place else len(parameters)
    """The place of the first number; a call with fewer arguments needs no check."""

    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def awaited(*arguments: Any, **named: Any) -> Any:
            if named or len(arguments) > first:
                arguments = given(arguments, named)
            return await function(*arguments, **named)

        return cast(F, awaited)

    @wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        if not named and len(arguments) <= first:
            return function(*arguments)
        return function(*given(arguments, named), **named)

    return cast(F, called)


def check_of(annotation: Any) -> Check | None:
    """Return the check for an annotation; None if the annotation names no number.

    The annotation is text, as `from __future__ import annotations` leaves it.
    """
    if not isinstance(annotation, str) or not _NUMERIC.search(annotation):
        return None
    kinds = [kind.strip() for kind in annotation.split("|")]
    checks = [_CHECKS[kind] for kind in kinds if kind in _CHECKS]
    if not checks:
        return None
    class_names = {kind for kind in kinds if kind not in _CHECKS and kind != "None"}
    optional = "None" in kinds

    def check(name: str, value: Any) -> Any:
        if value is None and optional:
            return None
        if class_names and any(base.__name__ in class_names for base in type(value).__mro__):
            return value
        if len(checks) > 1 and not _is_number(value):
            return checks[0](name, value)
        if "datetime" in class_names and "int" in kinds and not _is_number(value):
            raise InvalidInput(
                f"{name} is a datetime with a time zone, or milliseconds since 1970, not "
                f"{_shown(value)}"
            )
        return checks[-1](name, value)

    return check


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or hasattr(value, "__index__")


def check_whole(name: str, value: Any) -> int:
    """Return a whole number short enough to print in an error."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = index(value)
    except TypeError:
        raise InvalidInput(
            f"{name} is a whole number, not {_shown(value)} ({type(value).__name__})"
        ) from None
    if number.bit_length() > BITS_MAX:
        raise InvalidInput(f"{name} is a whole number of up to {BITS_MAX} bits, and has more")
    return number


def check_finite(name: str, value: Any) -> Any:
    """A finite number."""
    try:
        if isinstance(value, bool | str | bytes) or not math.isfinite(value):
            raise TypeError
    except (TypeError, ValueError, OverflowError):
        raise InvalidInput(f"{name} is a finite number, not {_shown(value)}") from None
    return value


def check_duration(name: str, value: Any) -> Any:
    """A finite number of seconds, or a `timedelta`."""
    if isinstance(value, timedelta):
        return value
    try:
        if isinstance(value, bool | str | bytes) or not math.isfinite(value):
            raise TypeError
        if abs(value) * 1000 > NUMBER_MAX:
            raise OverflowError
    except (TypeError, ValueError, OverflowError, ArithmeticError):
        raise InvalidInput(
            f"{name} is a number of seconds or a timedelta, not {_shown(value)}"
        ) from None
    return value


def _check_each(name: str, values: Any) -> list[int]:
    if isinstance(values, str | bytes | Mapping):
        raise _no_list(name, values)
    try:
        return [check_whole(name, value) for value in values]
    except TypeError:
        raise _no_list(name, values) from None


def _no_list(name: str, values: Any) -> InvalidInput:
    return InvalidInput(f"{name} is a list of whole numbers, not {_shown(values)}")


def _check_map(name: str, values: Any) -> dict[int, int]:
    if not isinstance(values, Mapping):
        raise InvalidInput(
            f"{name} is a mapping from partitions to offsets, such as {{0: 17}}, not {_shown(values)}"
        )
    return {check_whole(name, key): check_whole(name, value) for key, value in values.items()}


def _shown(value: Any) -> str:
    """A value as an error shows it: some numbers have more digits than Python prints."""
    try:
        text = repr(value)
    except Exception:
        return f"one of type {type(value).__name__}"
    return text if len(text) <= 100 else f"{text[:100]}…"


_CHECKS: dict[str, Check] = {
    "Sequence[int]": _check_each,
    "Mapping[int, int]": _check_map,
    "Seconds": check_duration,
    "float": check_finite,
    "int": check_whole,
}
