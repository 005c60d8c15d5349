"""What every pipeline begins with: the store that it works on, its progress, and how long it took."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.clock import SystemClock
from millstream.errors import CannotOpen, InvalidInput
from millstream.log.names import check_name
from millstream.remote.address import is_address
from millstream.spark.place import Place, make_place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Target = str | os.PathLike[str] | Place
"""A store: its file, the address of its server, or a place with a token."""

Tell = Callable[[str, int, int], None]
"""Hears of progress: at which stage, how much is done, and of how much."""

_NOT_SPLIT = re.compile(r"[^,\s](?:[^,]*[^,\s])?")


def quiet(_stage: str, _done: int, _total: int) -> None:
    """Reports no progress."""


def place_of(store: Target) -> Place:
    """Where a store is; a file must be there already."""
    if isinstance(store, Place):
        found = store
    else:
        text = os.fspath(store)
        found = make_place("", server=text) if is_address(text) else make_place(text, server="")
    if not found.is_server and not Path(found.url).exists():
        raise CannotOpen(f"there is no store at {found.url}", path=found.url)
    return found


def options_of(place: Place) -> dict[str, str]:
    """The options of Spark's source that name a store."""
    if not place.is_server:
        return {"path": place.url}
    named = {"token": place.token, "tokenFile": place.token_file, "ca": place.ca}
    return {"server": place.url, **{name: value for name, value in named.items() if value}}


def read(spark: SparkSession, place: Place, logs: Sequence[str], **options: object) -> DataFrame:
    """A batch read of logs by their names, whatever is in these."""
    reader = spark.read.format("millstream").options(**options_of(place))
    for name, value in (*subscription(logs).items(), *options.items()):
        reader = reader.option(name, _text(value))
    return reader.load()


def _text(value: object) -> str:
    if isinstance(value, dict):
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def subscription(logs: Sequence[str]) -> dict[str, str]:
    """The option that names these logs; a name with a comma needs a pattern."""
    if all(_NOT_SPLIT.fullmatch(log) for log in logs):
        return {"subscribe": ",".join(logs)}
    return {"subscribePattern": "|".join(map(re.escape, logs))}


def check_names(logs: Sequence[str], what: str = "log") -> tuple[str, ...]:
    """Names, each once; a text is not a list of its letters."""
    if isinstance(logs, str):
        raise InvalidInput(f"expected a list of {what} names, not the one text {logs!r}")
    return tuple(dict.fromkeys(check_name(log, what) for log in logs))


@contextmanager
def configured(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Spark with these settings, until the block ends."""
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._began = self._clock.seconds()

    @property
    def seconds(self) -> float:
        """How long ago it was made."""
        return round(self._clock.seconds() - self._began, 3)
