"""Options of `format("millstream")`, read once and checked; names are Kafka's where Kafka has them."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from millstream.errors import InvalidInput
from millstream.log.model.names import NUMBER_MAX
from millstream.partitioning import PARTITION, partition_name, partition_of
from millstream.spark.option_texts import OptionTexts
from millstream.spark.place import Place
from millstream.spark.source.bins import BINS_MAX

EARLIEST, LATEST = -2, -1
"""Kafka's numbers for both ends of a log, in the JSON of offsets."""

STATES = ("available", "in_flight", "done", "failed", "attempts")


DELAY_MS = 15 * 60 * 1000
"""How long a stream waits at most for `minOffsetsPerTrigger`, as Kafka's does."""


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
    found = OptionTexts(options)
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


def _condition(found: OptionTexts) -> str:
    condition = found.text("filter")
    if condition:
        from millstream.filters import parse  # only reads with a filter pay for its parser

        found.check("filter", parse, condition)
    return condition


def _offsets_per_trigger(found: OptionTexts) -> tuple[int | None, int | None]:
    """The most and the fewest records of a batch of a stream."""
    most = found.number("maxOffsetsPerTrigger", 1, NUMBER_MAX)
    least = found.number("minOffsetsPerTrigger", 1, NUMBER_MAX)
    if least and most and least > most:
        raise found.wrong("minOffsetsPerTrigger", f"at most maxOffsetsPerTrigger, {most:,}")
    return most, least


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Check the options of a write."""
    found = OptionTexts(options)
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


def _positions(found: OptionTexts, side: str, *, default: int) -> Positions:
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


def _by_log(found: OptionTexts, option: str, *, least: int) -> dict[str, int]:
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
