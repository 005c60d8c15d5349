"""Options as Spark hands them over: texts by name, read as flags, numbers, names and times.

An error names the option and what was expected. An option that neither we nor Spark know is refused,
with the nearest name that there is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches

import msgspec

from millstream.cluster.read_level import parse_read_level
from millstream.errors import InvalidInput, MillstreamError
from millstream.log.model.names import check_name
from millstream.partitioning import PARTITIONS_MAX, partition_name
from millstream.spark.place import Place, make_place

NAMES = (
    "path", "server", "token", "tokenFile", "ca", "readLevel",
    "subscribe", "subscribePattern", "startingOffsets", "endingOffsets", "startingTimestamp",
    "endingTimestamp", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy", "maxOffsetsPerTrigger", "minPartitions",
    "maxRecordsPerPartition", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay",
    "failOnDataLoss", "includeHeaders", "typedHeaders", "metadataOnly", "filter", "cursor",
    "queue", "state", "log", "topic", "assign", "queues", "txnAppId", "txnVersion", "archive",
    "rawValues", "columns", "columnNameOfCorruptRecord",
)  # fmt: skip
"""All options of the source."""

_SPARKS = frozenset(
    ("checkpointlocation", "queryname", "outputmode", "mode", "paths", "location", "owner",
     "provider", "external", "comment", "collation", "is_managed_location", "timestampasof",
     "versionasof", "mergeschema", "partitionoverwritemode", "name", "dbtable",
     "retainlastbatches", "__partition_columns", "pathoptionbeforereading")
)  # fmt: skip
"""Options and table properties that Spark itself hands to a source."""

_SPARKS_OWN = ("spark.", "option.", "__", "view.", "current")
"""What names of Spark's own begin with."""

_DURATION = re.compile(r"(\d{1,12})\s*(ms|s|m|min|h|d)")
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


class OptionTexts:
    """Options by name, whatever the case of their letters."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        names = {name.lower(): name for name in NAMES}
        for name in self._values:
            if name in names or name in _SPARKS or name.startswith(_SPARKS_OWN):
                continue
            if name.startswith("kafka."):
                raise InvalidInput(
                    f"unknown option {name}: there is no Kafka here; the options path or server "
                    "say where the store is"
                )
            (close,) = get_close_matches(name, names, n=1, cutoff=0.0)
            raise InvalidInput(f"unknown option {name}; did you mean {names[close]}?")

    def text(self, name: str) -> str:
        """Return the text of an option without surrounding blanks, or an empty text."""
        return str(self._values.get(name.lower()) or "").strip()

    def given(self, *names: str) -> str:
        """Return the name of the first option that is set, or an empty text."""
        return next((name for name in names if self.text(name)), "")

    def wrong(self, name: str, expected: str) -> InvalidInput:
        """Return the error for an option with an unexpected value."""
        return InvalidInput(f"option {name}: expected {expected}, not {self.text(name)[:200]!r}")

    def flag(self, name: str, default: bool) -> bool:
        """Return an option as true or false."""
        text = self.text(name).lower()
        if text not in ("", "true", "false"):
            raise self.wrong(name, "true or false")
        return default if not text else text == "true"

    def number(self, name: str, lowest: int, highest: int) -> int | None:
        """Return an option as a whole number from `lowest` to `highest`, or None without one."""
        text = self.text(name)
        if not text:
            return None
        if not re.fullmatch(r"[0-9]{1,19}", text) or not lowest <= int(text) <= highest:
            raise self.wrong(name, f"a whole number from {lowest:,} to {highest:,}")
        return int(text)

    def check(self, name: str, check: Callable[..., object], *arguments: str) -> None:
        """Run a check and name the option in its error."""
        try:
            check(*arguments)
        except MillstreamError as error:
            raise InvalidInput(f"option {name}: {error.message}") from error

    def name(self, name: str) -> str:
        """Return the option as the name of a log, queue or cursor, or an empty text."""
        text = self.text(name)
        if text:
            self.check(name, check_name, text, name)
        return text

    def names(self, name: str) -> list[str]:
        """Return the distinct names of an option: a JSON list, or names divided by commas."""
        try:
            names = msgspec.json.decode(self.text(name), type=list[str])
        except msgspec.MsgspecError:
            names = [text.strip() for text in self.text(name).split(",") if text.strip()]
        for log_name in names:
            self.check(name, check_name, log_name)
        return list(dict.fromkeys(names))

    def assigned(self) -> list[str]:
        """Return the logs of the option `assign`; partition 0 may be a log without partitions."""
        if not self.text("assign"):
            return []
        expected = 'JSON such as {"orders": [0, 1]}; a log without partitions has the one 0'
        try:
            partitions = msgspec.json.decode(self.text("assign"), type=dict[str, list[int]])
        except msgspec.MsgspecError as error:
            raise self.wrong("assign", expected) from error
        for name, numbers in partitions.items():
            self.check("assign", check_name, name)
            if not numbers or any(not 0 <= number < PARTITIONS_MAX for number in numbers):
                raise self.wrong("assign", expected)
        if not partitions:
            raise self.wrong("assign", expected)
        return [
            partition_name(name, number) if number else name
            for name, numbers in partitions.items()
            for number in dict.fromkeys(numbers)
        ]

    def duration_ms(self, name: str, default: int) -> int:
        """Return an option such as 30s or 15m in milliseconds."""
        text = self.text(name)
        match = _DURATION.fullmatch(text.lower())
        if text and match is None:
            raise self.wrong(name, "a time such as 500ms, 30s, 15m or 1h")
        return default if match is None else int(match[1]) * _UNITS_MS[match[2]]

    def place(self) -> Place:
        """Return the place of the store."""
        return make_place(
            self.text("path"),
            server=self.text("server"),
            token=self.text("token"),
            token_file=self.text("tokenFile"),
            ca=self.text("ca"),
            read_level=self._read_level(),
        )

    def _read_level(self) -> str:
        text = self.text("readLevel") or "strong"
        self.check("readLevel", parse_read_level, text)
        return text
