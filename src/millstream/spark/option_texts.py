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
)  # fmt: skip
"""Every option that there is."""

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
        known = {name.lower(): name for name in NAMES}
        for name in self._values:
            if name in known or name in _SPARKS or name.startswith(_SPARKS_OWN):
                continue
            if name.startswith("kafka."):
                raise InvalidInput(
                    f"unknown option {name}: there is no Kafka here; the options path or server "
                    "say where the store is"
                )
            (close,) = get_close_matches(name, known, n=1, cutoff=0.0)
            raise InvalidInput(f"unknown option {name}; did you mean {known[close]}?")

    def text(self, name: str) -> str:
        """What is given, without blanks around it; empty if nothing is."""
        return str(self._values.get(name.lower()) or "").strip()

    def given(self, *names: str) -> str:
        """The first of these options that is set."""
        return next((name for name in names if self.text(name)), "")

    def wrong(self, name: str, expected: str) -> InvalidInput:
        """The error for a value that is not what was expected."""
        return InvalidInput(f"option {name}: expected {expected}, not {self.text(name)[:200]!r}")

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        text = self.text(name).lower()
        if text not in ("", "true", "false"):
            raise self.wrong(name, "true or false")
        return default if not text else text == "true"

    def number(self, name: str, least: int, most: int) -> int | None:
        """A whole number within bounds, both of them allowed; None if it is not given."""
        text = self.text(name)
        if not text:
            return None
        if not re.fullmatch(r"[0-9]{1,19}", text) or not least <= int(text) <= most:
            raise self.wrong(name, f"a whole number from {least:,} to {most:,}")
        return int(text)

    def check(self, name: str, check: Callable[..., object], *given: str) -> None:
        """Run a check whose error is to name the option."""
        try:
            check(*given)
        except MillstreamError as error:
            raise InvalidInput(f"option {name}: {error.message}") from error

    def name(self, name: str) -> str:
        """The name of a log, queue or cursor, as the option is called; empty if it is not given."""
        text = self.text(name)
        if text:
            self.check(name, check_name, text, name)
        return text

    def names(self, name: str) -> list[str]:
        """Names with commas between, or as a JSON list, each once: a name may have a comma."""
        try:
            found = msgspec.json.decode(self.text(name), type=list[str])
        except msgspec.MsgspecError:
            found = [one.strip() for one in self.text(name).split(",") if one.strip()]
        for one in found:
            self.check(name, check_name, one)
        return list(dict.fromkeys(found))

    def assigned(self) -> list[str]:
        """The logs that Kafka's option names by their partitions; 0 may be a log that has none."""
        if not self.text("assign"):
            return []
        expected = 'JSON such as {"orders": [0, 1]}; a log without partitions has the one 0'
        try:
            given = msgspec.json.decode(self.text("assign"), type=dict[str, list[int]])
        except msgspec.MsgspecError as error:
            raise self.wrong("assign", expected) from error
        for name, numbers in given.items():
            self.check("assign", check_name, name)
            if not numbers or any(not 0 <= one < PARTITIONS_MAX for one in numbers):
                raise self.wrong("assign", expected)
        if not given:
            raise self.wrong("assign", expected)
        return [
            partition_name(name, one) if one else name
            for name, numbers in given.items()
            for one in dict.fromkeys(numbers)
        ]

    def duration_ms(self, name: str, default: int) -> int:
        """A time such as 30s or 15m, in milliseconds."""
        text = self.text(name)
        found = _DURATION.fullmatch(text.lower())
        if text and found is None:
            raise self.wrong(name, "a time such as 500ms, 30s, 15m or 1h")
        return default if found is None else int(found[1]) * _UNITS_MS[found[2]]

    def place(self) -> Place:
        """Where the store is."""
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
