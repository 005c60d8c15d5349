"""Options of `format("millstream")`, read once and checked; names are Kafka's where Kafka has them.

An error names the option and what was expected. An option that neither we nor Spark know is refused,
with the nearest name that there is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches

import msgspec
from msgspec import Struct

from millstream.cluster.read_level import parse_read_level
from millstream.errors import InvalidInput, MillstreamError
from millstream.log.names import NUMBER_MAX, check_name
from millstream.partitioning import PARTITION, PARTITIONS_MAX, partition_name, partition_of
from millstream.spark.bins import BINS_MAX
from millstream.spark.place import Place, make_place

EARLIEST, LATEST = -2, -1
"""Kafka's numbers for both ends of a log, in the JSON of offsets."""

STATES = ("available", "in_flight", "done", "failed", "attempts")

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

DELAY_MS = 15 * 60 * 1000
"""How long a stream waits at most for `minOffsetsPerTrigger`, as Kafka's does."""

_DURATION = re.compile(r"(\d{1,12})\s*(ms|s|m|min|h|d)")
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


class Positions(Struct, frozen=True):
    """Where to begin or end: offsets or times by log, and one for all the others."""

    default: int
    offsets: dict[str, int] = {}
    times: dict[str, int] = {}
    time: int | None = None

    def offset_of(self, log: str) -> int:
        """The offset that is said of a log."""
        found = _said(self.offsets, log)
        return self.default if found is None else found

    def time_of(self, log: str) -> int | None:
        """The time that is said of a log."""
        found = _said(self.times, log)
        return self.time if found is None else found


def _said(by_log: dict[str, int], log: str) -> int | None:
    """What is said of a log: by its name; of a partition also by its log's, of a log by number 0."""
    if log in by_log or not by_log:
        return by_log.get(log)
    part = partition_of(log)
    return by_log.get(partition_name(log, 0) if part is None else part[0])


class ReadOptions(Struct, frozen=True, kw_only=True):
    """What is to be read, and how."""

    place: Place
    logs: tuple[str, ...]
    pattern: str
    starting: Positions
    ending: Positions
    late_is_latest: bool
    max_offsets: int | None
    max_bytes: int | None
    min_offsets: int | None
    delay_ms: int
    """How long a stream waits for `min_offsets` at most."""
    min_partitions: int | None
    max_records: int | None
    """Records of one task at most."""
    fail_on_data_loss: bool
    headers: str
    """'' for none, else 'kafka' or 'typed'."""
    values: bool
    filter: str
    cursor: str
    queue: str
    state: str
    archive: str = ""
    """Where the beginnings of the logs are archived."""
    assigned: bool = False
    """Whether `logs` were named with their partitions: a log that has some is then partition 0."""

    def shown(self, log: str) -> tuple[str, int]:
        """The topic and the partition of a log's records: a partition is shown as it was asked for."""
        part = partition_of(log)
        if part is None:
            return log, 0
        if self.pattern:
            is_whole = re.fullmatch(self.pattern, part[0]) is not None
        else:
            is_whole = self.assigned or part[0] in self.logs
        return part if is_whole else (log, 0)


class WriteOptions(Struct, frozen=True, kw_only=True):
    """Where rows go."""

    place: Place
    log: str
    """The log of all rows; if there is none, and no queue, each row names its own."""
    queue: str
    assigns: bool
    """Whether rows assign stored messages to queues."""
    queues: tuple[str, ...]
    app_id: str
    version: int | None

    @property
    def by_topic(self) -> bool:
        """Whether each row names its log."""
        return not (self.log or self.queue or self.assigns)


def read_options(options: Mapping[str, str], *, streaming: bool | None = None) -> ReadOptions:
    """Check the options of a read; Spark asks for columns before it says if it streams."""
    found = _Options(options)
    queue, state, pattern = found.name("queue"), found.text("state"), found.text("subscribePattern")
    chosen = ("subscribe", "subscribePattern", "assign", "queue")
    asked = [name for name in chosen if found.text(name)]
    if len(asked) != 1:
        raise InvalidInput(
            "expected exactly one of the options subscribe (names of logs, with commas between), "
            'subscribePattern (a regular expression), assign (JSON such as {"orders": [0]}) and '
            f"queue; got {' and '.join(asked) or 'none'}"
        )
    if state and not queue:
        raise InvalidInput("option state: is for the option queue")
    if queue and streaming:
        raise InvalidInput("option queue: the states of a queue are read in batches, not streamed")
    if queue and state not in STATES:
        raise found.wrong("state", f"one of {', '.join(STATES)}")
    try:
        re.compile(pattern)
    except re.error as error:
        raise InvalidInput(
            f"option subscribePattern: expected a regular expression: {error}"
        ) from error
    condition = _condition(found)
    cursor = found.name("cursor")
    if cursor and streaming is False:
        raise InvalidInput("option cursor: is for readStream; a batch read leaves no trace")
    if streaming and (
        ended := found.given("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
    ):
        raise InvalidInput(f"option {ended}: is for batch reads; a stream has no end")
    archive = found.text("archive")
    if archive and (streaming or queue):
        raise InvalidInput("option archive: is for batch reads of logs")
    max_offsets, min_offsets = _offsets_per_trigger(found)
    strategy = found.text("startingOffsetsByTimestampStrategy") or "error"
    if strategy not in ("error", "latest"):
        raise found.wrong("startingOffsetsByTimestampStrategy", "'error' or 'latest'")
    headers = "kafka" if found.flag("includeHeaders", False) else ""
    if found.flag("typedHeaders", False):
        if headers:
            raise InvalidInput("options includeHeaders and typedHeaders: expected only one of them")
        headers = "typed"
    return ReadOptions(
        place=found.place(),
        logs=tuple(found.names("subscribe") or found.assigned()),
        pattern=pattern,
        starting=_positions(found, "starting", default=LATEST if streaming else EARLIEST),
        ending=_positions(found, "ending", default=LATEST),
        late_is_latest=bool(streaming) or strategy == "latest",
        max_offsets=max_offsets,
        max_bytes=found.number("maxBytesPerTrigger", 1, NUMBER_MAX),
        min_offsets=min_offsets,
        delay_ms=found.duration_ms("maxTriggerDelay", DELAY_MS),
        min_partitions=found.number("minPartitions", 1, BINS_MAX),
        max_records=found.number("maxRecordsPerPartition", 1, NUMBER_MAX),
        fail_on_data_loss=found.flag("failOnDataLoss", True),
        headers=headers,
        values=not found.flag("metadataOnly", False),
        filter=condition,
        cursor=cursor,
        queue=queue,
        state=state,
        archive=archive,
        assigned=bool(found.text("assign")),
    )


def _condition(found: _Options) -> str:
    condition = found.text("filter")
    if condition:
        from millstream.filters import parse  # only reads with a filter pay for its parser

        found.check("filter", parse, condition)
    return condition


def _offsets_per_trigger(found: _Options) -> tuple[int | None, int | None]:
    """The most and the fewest records of a batch of a stream."""
    most = found.number("maxOffsetsPerTrigger", 1, NUMBER_MAX)
    least = found.number("minOffsetsPerTrigger", 1, NUMBER_MAX)
    if least and most and least > most:
        raise found.wrong("minOffsetsPerTrigger", f"at most maxOffsetsPerTrigger, {most:,}")
    return most, least


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Check the options of a write."""
    found = _Options(options)
    log, topic, queue = found.name("log"), found.name("topic"), found.name("queue")
    assigns = found.flag("assign", False)
    if log and topic:
        raise InvalidInput("options log and topic mean the same: expected only one of them")
    log = log or topic
    if (bool(log), bool(queue), assigns).count(True) > 1:
        raise InvalidInput(
            "expected one of the options log (the name of a log), queue (the name of a queue) and "
            "assign=true (rows name a log, an offset and a queue); without them rows have a column "
            "topic that names their log"
        )
    queues = found.names("queues")
    if queues and not assigns:
        raise InvalidInput("option queues: is for assign=true")
    app_id, version = found.text("txnAppId"), found.number("txnVersion", 0, NUMBER_MAX)
    if bool(app_id) != (version is not None):
        raise InvalidInput("options txnAppId and txnVersion: expected both or neither")
    return WriteOptions(
        place=found.place(),
        log=log,
        queue=queue,
        assigns=assigns,
        queues=tuple(queues),
        app_id=app_id,
        version=version,
    )


class _Options:
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
        return str(self._values.get(name.lower()) or "").strip()

    def given(self, *names: str) -> str:
        """The first of these options that is set."""
        return next((name for name in names if self.text(name)), "")

    def wrong(self, name: str, expected: str) -> InvalidInput:
        return InvalidInput(f"option {name}: expected {expected}, not {self.text(name)[:200]!r}")

    def flag(self, name: str, default: bool) -> bool:
        text = self.text(name).lower()
        if text not in ("", "true", "false"):
            raise self.wrong(name, "true or false")
        return default if not text else text == "true"

    def number(self, name: str, least: int, most: int) -> int | None:
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
        """Names with commas between, each once."""
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


def _positions(found: _Options, side: str, *, default: int) -> Positions:
    """Kafka's order: a time for all, times by log, offsets."""
    names = (f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets")
    if (time := found.number(names[0], 0, NUMBER_MAX)) is not None:
        return Positions(default, time=time)
    if found.text(names[1]):
        return Positions(default, times=_by_log(found, names[1], least=0))
    text = found.text(names[2])
    if text.lower() in ("earliest", "latest"):
        if side == "ending" and text.lower() == "earliest":
            raise found.wrong(names[2], "'latest' or JSON such as {\"orders\": 100}")
        return Positions(EARLIEST if text.lower() == "earliest" else LATEST)
    if text:
        return Positions(default, offsets=_by_log(found, names[2], least=EARLIEST))
    return Positions(default)


def _by_log(found: _Options, option: str, *, least: int) -> dict[str, int]:
    """{"log": 5}, for all its partitions if it has some; or one for each: {"log": {"0": 5}}."""
    expected = 'JSON such as {"orders": 100} or {"orders": {"0": 100}}'
    if least < 0:
        expected = f"'earliest', 'latest' or {expected}; -2 is earliest, -1 latest"
    try:
        given = msgspec.json.decode(found.text(option), type=dict[str, int | dict[str, int]])
    except msgspec.MsgspecError as error:
        raise found.wrong(option, expected) from error
    result: dict[str, int] = {}
    for log, value in given.items():
        named = {log: value} if isinstance(value, int) else _by_partition(log, value)
        if not all(
            least <= one <= NUMBER_MAX and (name == log or partition_of(name))
            for name, one in named.items()
        ):
            raise found.wrong(option, expected)
        result |= named
    return result


def _by_partition(log: str, offsets: dict[str, int]) -> dict[str, int]:
    return {f"{log}{PARTITION}{number}": offset for number, offset in offsets.items()}
