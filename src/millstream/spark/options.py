"""Options of `format("millstream")`, checked once; names follow Kafka's source where possible."""

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

STATES = ("available", "delayed", "in_flight", "done", "failed", "attempts")


MODES = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
"""What becomes of a record that does not fit, as Spark's JSON source names it."""

DELAY_MS = 15 * 60 * 1000
"""How long a stream waits at most for `minOffsetsPerTrigger`, as Kafka's does."""


class Positions(Struct, frozen=True):
    """The bounds of a read: offsets or times by log, and a default for the remaining logs."""

    default: int
    offsets: dict[str, int] = {}
    times: dict[str, int] = {}
    time: int | None = None

    def offset_of(self, log: str) -> int:
        """The offset that is said of a log."""
        offset = _said(self.offsets, log)
        return self.default if offset is None else offset

    def time_of(self, log: str) -> int | None:
        """The time that is said of a log."""
        time_ms = _said(self.times, log)
        return self.time if time_ms is None else time_ms


def _said(by_log: dict[str, int], log: str) -> int | None:
    """What is said of a log: by its name; of a partition also by its log's, of a log by number 0."""
    if log in by_log or not by_log:
        return by_log.get(log)
    partition = partition_of(log)
    return by_log.get(partition_name(log, 0) if partition is None else partition[0])


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
    """The most records of a task."""
    fail_on_data_loss: bool
    headers: str
    """'kafka', 'typed', or '' for no column of headers."""
    values: bool
    filter: str
    cursor: str
    queue: str
    state: str
    archive: str = ""
    """The archive that holds the beginnings of the logs."""
    assigned: bool = False
    """True if `logs` names partitions: partition 0 is then named by the partitioned log itself."""
    raw_values: bool = False
    """Whether values of logs with a schema are bytes too."""
    columns: bool = False
    """Whether each field of a schema is a column."""
    mode: str = "PERMISSIVE"
    """How the read treats records that do not fit their schema."""
    corrupt_column: str = "_corrupt"
    """The name of the column that reports misfits."""

    def shown(self, log: str) -> tuple[str, int]:
        """Return the topic and partition that rows of a log show: as the user named the log."""
        partition = partition_of(log)
        if partition is None:
            return log, 0
        if self.pattern:
            is_whole = re.fullmatch(self.pattern, partition[0]) is not None
        else:
            is_whole = self.assigned or partition[0] in self.logs
        return partition if is_whole else (log, 0)


class WriteOptions(Struct, frozen=True, kw_only=True):
    """The target of a write."""

    place: Place
    log: str
    """The log of all rows. Without a log and a queue, each row names its log."""
    queue: str
    assigns: bool
    """True if rows assign stored messages to queues."""
    queues: tuple[str, ...]
    app_id: str
    version: int | None

    @property
    def by_topic(self) -> bool:
        """Return whether the column `topic` of a row names the log."""
        return not (self.log or self.queue or self.assigns)


def read_options(options: Mapping[str, str], *, streaming: bool | None = None) -> ReadOptions:
    """Check the options of a read; `streaming` is None if Spark asks only for the columns."""
    texts = OptionTexts(options)
    queue, state, pattern = texts.name("queue"), texts.text("state"), texts.text("subscribePattern")
    chosen = ("subscribe", "subscribePattern", "assign", "queue")
    subscriptions = [name for name in chosen if texts.text(name)]
    if len(subscriptions) != 1:
        raise InvalidInput(
            "expected exactly one of the options subscribe (names of logs, with commas between), "
            'subscribePattern (a regular expression), assign (JSON such as {"orders": [0]}) and '
            f"queue; got {' and '.join(subscriptions) or 'none'}"
        )
    if state and not queue:
        raise InvalidInput("option state: is for the option queue")
    if queue and streaming:
        raise InvalidInput("option queue: the states of a queue are read in batches, not streamed")
    if queue and state not in STATES:
        raise texts.wrong("state", f"one of {', '.join(STATES)}")
    try:
        re.compile(pattern)
    except re.error as error:
        raise InvalidInput(
            f"option subscribePattern: expected a regular expression: {error}"
        ) from error
    condition = _condition(texts)
    cursor = texts.name("cursor")
    if cursor and streaming is False:
        raise InvalidInput("option cursor: is for readStream; a batch read leaves no trace")
    if streaming and (
        ended := texts.given("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
    ):
        raise InvalidInput(f"option {ended}: is for batch reads; a stream has no end")
    archive = texts.text("archive")
    if archive and (streaming or queue):
        raise InvalidInput("option archive: is for batch reads of logs")
    max_offsets, min_offsets = _offsets_per_trigger(texts)
    strategy = texts.text("startingOffsetsByTimestampStrategy") or "error"
    if strategy not in ("error", "latest"):
        raise texts.wrong("startingOffsetsByTimestampStrategy", "'error' or 'latest'")
    raw_values, columns, mode = _typed_options(texts)
    return ReadOptions(
        place=texts.place(),
        logs=tuple(texts.names("subscribe") or texts.assigned()),
        pattern=pattern,
        starting=_positions(texts, "starting", default=LATEST if streaming else EARLIEST),
        ending=_positions(texts, "ending", default=LATEST),
        late_is_latest=bool(streaming) or strategy == "latest",
        max_offsets=max_offsets,
        max_bytes=texts.number("maxBytesPerTrigger", 1, NUMBER_MAX),
        min_offsets=min_offsets,
        delay_ms=texts.duration_ms("maxTriggerDelay", DELAY_MS),
        min_partitions=texts.number("minPartitions", 1, BINS_MAX),
        max_records=texts.number("maxRecordsPerPartition", 1, NUMBER_MAX),
        fail_on_data_loss=texts.flag("failOnDataLoss", True),
        headers=_header_form(texts),
        values=not texts.flag("metadataOnly", False),
        filter=condition,
        cursor=cursor,
        queue=queue,
        state=state,
        archive=archive,
        assigned=bool(texts.text("assign")),
        raw_values=raw_values,
        columns=columns,
        mode=mode,
        corrupt_column=texts.text("columnNameOfCorruptRecord") or "_corrupt",
    )


def _header_form(texts: OptionTexts) -> str:
    if not texts.flag("typedHeaders", False):
        return "kafka" if texts.flag("includeHeaders", False) else ""
    if texts.flag("includeHeaders", False):
        raise InvalidInput("options includeHeaders and typedHeaders: expected only one of them")
    return "typed"


def _typed_options(texts: OptionTexts) -> tuple[bool, bool, str]:
    """Return how values of logs with a schema are read: as bytes, as columns, and in which mode."""
    raw_values, columns = texts.flag("rawValues", False), texts.flag("columns", False)
    mode = texts.text("mode").upper() or "PERMISSIVE"
    if mode not in MODES:
        raise texts.wrong("mode", f"one of {', '.join(MODES)}")
    if columns or mode != "PERMISSIVE":
        typed = "columns" if columns else "mode"
        if raw_values:
            raise InvalidInput(f"options rawValues and {typed}: expected only one of them")
        if texts.text("archive") or texts.text("queue") or texts.flag("metadataOnly", False):
            raise InvalidInput(f"option {typed}: is for the values of logs that have a schema")
    return raw_values, columns, mode


def _condition(texts: OptionTexts) -> str:
    condition = texts.text("filter")
    if condition:
        from millstream.filters import parse  # only reads with a filter pay for its parser

        texts.check("filter", parse, condition)
    return condition


def _offsets_per_trigger(texts: OptionTexts) -> tuple[int | None, int | None]:
    """Return the largest and the smallest number of records in a batch of a stream."""
    offsets_max = texts.number("maxOffsetsPerTrigger", 1, NUMBER_MAX)
    offsets_min = texts.number("minOffsetsPerTrigger", 1, NUMBER_MAX)
    if offsets_min and offsets_max and offsets_min > offsets_max:
        raise texts.wrong("minOffsetsPerTrigger", f"at most maxOffsetsPerTrigger, {offsets_max:,}")
    return offsets_max, offsets_min


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Check the options of a write."""
    texts = OptionTexts(options)
    log, topic, queue = texts.name("log"), texts.name("topic"), texts.name("queue")
    assigns = texts.flag("assign", False)
    if log and topic:
        raise InvalidInput("options log and topic mean the same: expected only one of them")
    log = log or topic
    if (bool(log), bool(queue), assigns).count(True) > 1:
        raise InvalidInput(
            "expected one of the options log (the name of a log), queue (the name of a queue) and "
            "assign=true (rows name a log, an offset and a queue); without them rows have a column "
            "topic that names their log"
        )
    queues = texts.names("queues")
    if queues and not assigns:
        raise InvalidInput("option queues: is for assign=true")
    app_id, version = texts.text("txnAppId"), texts.number("txnVersion", 0, NUMBER_MAX)
    if bool(app_id) != (version is not None):
        raise InvalidInput("options txnAppId and txnVersion: expected both or neither")
    return WriteOptions(
        place=texts.place(),
        log=log,
        queue=queue,
        assigns=assigns,
        queues=tuple(queues),
        app_id=app_id,
        version=version,
    )


def _positions(texts: OptionTexts, bound: str, *, default: int) -> Positions:
    """Return a bound of a read in Kafka's order: a time for all logs, times by log, offsets."""
    names = (f"{bound}Timestamp", f"{bound}OffsetsByTimestamp", f"{bound}Offsets")
    if (time := texts.number(names[0], 0, NUMBER_MAX)) is not None:
        return Positions(default, time=time)
    if texts.text(names[1]):
        return Positions(default, times=_by_log(texts, names[1], lowest=0))
    text = texts.text(names[2])
    if text.lower() in ("earliest", "latest"):
        if bound == "ending" and text.lower() == "earliest":
            raise texts.wrong(names[2], "'latest' or JSON such as {\"orders\": 100}")
        return Positions(EARLIEST if text.lower() == "earliest" else LATEST)
    if text:
        return Positions(default, offsets=_by_log(texts, names[2], lowest=EARLIEST))
    return Positions(default)


def _by_log(texts: OptionTexts, option: str, *, lowest: int) -> dict[str, int]:
    """Return offsets by log: {"log": 5} for all partitions, {"log": {"0": 5}} for a single one."""
    expected = 'JSON such as {"orders": 100} or {"orders": {"0": 100}}'
    if lowest < 0:
        expected = f"'earliest', 'latest' or {expected}; -2 is earliest, -1 latest"
    try:
        offsets_by_log = msgspec.json.decode(
            texts.text(option), type=dict[str, int | dict[str, int]]
        )
    except msgspec.MsgspecError as error:
        raise texts.wrong(option, expected) from error
    result: dict[str, int] = {}
    for log, value in offsets_by_log.items():
        named = {log: value} if isinstance(value, int) else _by_partition(log, value)
        if not all(
            lowest <= offset <= NUMBER_MAX and (name == log or partition_of(name))
            for name, offset in named.items()
        ):
            raise texts.wrong(option, expected)
        result |= named
    return result


def _by_partition(log: str, offsets: dict[str, int]) -> dict[str, int]:
    return {f"{log}{PARTITION}{number}": offset for number, offset in offsets.items()}
