"""The SlateDB engine: rows in objects of a bucket, with one writer at a time wherever it runs.

A commit is one batch, and returns when the object store has it. Opening a store to write fences the
writer before: what that one had not sent fails with `Fenced`, what it had sent is `OutcomeUnknown`,
and it goes on reading. Readers see the last commit that is durable, and wait for none in flight.

The estimated costs of a month take the prices of Amazon S3 Standard in us-east-1, without traffic to
other regions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

from millstream.clock import Clock, SystemClock
from millstream.engine.commit import Commit
from millstream.engine.disk import FolderSpace
from millstream.engine.protocol import Ability, Durability, Shortage, WouldWait, poll
from millstream.engine.slate.binding import Binding
from millstream.engine.slate.fast_binding import bind
from millstream.engine.slate.options import SlateOptions, options_with
from millstream.engine.slate.probe import (
    check_commits,
    check_stamp,
    is_reached,
    probe,
    put_stamp,
    refusal,
)
from millstream.engine.slate.reader import Following, no_store, read_manifest
from millstream.engine.slate.rows import SlateImage, SlateSnapshot
from millstream.engine.slate.writer import REPLAYED_MAX, Opener, Writing
from millstream.errors import Closed, CorruptionError, InvalidInput, StoreError, WriteFailed
from millstream.limits import Limits
from millstream.objects.address import open_objects, parse_address
from millstream.objects.folder import STAGED, ObjectFolder

OPENING_BYTES = 64 * 1024
"""What opening a store writes at most: a few small objects."""

FOLDER_REPEATS = 3
"""How often SlateDB repeats what a folder refused: a disk is not away for a moment, as a server is."""

FULL_CLOSE_S = 2.0
"""How long closing waits on a full disk, where SlateDB tries to gather what is durable as it is."""

LISTED_S = 60.0
"""How long the numbers of a listing are shown."""

Kind = Literal["get", "put", "list", "delete"]
_KINDS: dict[str, Kind] = {
    "get": "get",
    "get_range": "get",
    "get_ranges": "get",
    "head": "get",
    "put": "put",
    "multipart_init": "put",
    "multipart_part": "put",
    "multipart_complete": "put",
    "list": "list",
    "list_with_offset": "list",
    "list_with_delimiter": "list",
    "delete": "delete",
}

USD_PER_REQUEST: dict[Kind, float] = {
    "get": 0.0000004,
    "put": 0.000005,
    "list": 0.000005,
    "delete": 0.0,
}
USD_PER_BYTE_AND_MONTH = 0.023 / 1024**3
MONTH_S = 30 * 24 * 3600.0

COUNTED_S_MIN = 10.0
"""Before so much time has passed, requests say nothing of a month."""


def requests_of(metrics: Iterable[Any]) -> dict[Kind, int]:
    """How many requests of each kind SlateDB has counted."""
    found: dict[Kind, int] = dict.fromkeys(USD_PER_REQUEST, 0)
    for metric in metrics:
        if metric.name == "slatedb.object_store.request_count":
            labels = {label.key: label.value for label in metric.labels}
            kind = _KINDS.get(labels.get("api", ""))
            if kind is not None:
                found[kind] += metric.value[0]
    return found


def month_usd(requests: dict[Kind, int], *, elapsed_s: float, stored_bytes: int) -> float:
    """What a month costs if it goes on as it has since the handle was opened."""
    usd = stored_bytes * USD_PER_BYTE_AND_MONTH
    if elapsed_s >= COUNTED_S_MIN:
        asked = sum(USD_PER_REQUEST[kind] * count for kind, count in requests.items())
        usd += asked * MONTH_S / elapsed_s
    return round(usd, 2)


class BucketListing(NamedTuple):
    """What a listing has found, and when."""

    at_s: float
    objects: int
    bytes: int
    staged_bytes: int
    """Of these, what bulk writers have staged and the writer has not adopted."""


class SlateWriter(SlateSnapshot):
    """The turn to write."""

    def __init__(self, image: SlateImage, write: Callable[[Commit], None]) -> None:
        super().__init__(image)
        self._write = write

    def commit(self, commit: Commit) -> None:
        """Make it durable."""
        self._write(commit)


class SlateEngine:
    """Rows of one prefix of a bucket. It has no SQL, and its handles cross no fork."""

    abilities: frozenset[Ability] = frozenset({"paced"})
    durability: Durability = "full"

    def __init__(
        self,
        address: str,
        *,
        read_only: bool = False,
        create: bool = True,
        durability: Durability = "full",
        options: SlateOptions | None = None,
        limits: Limits | None = None,
        clock: Clock | None = None,
        before_fencing: Callable[[], None] | None = None,
    ) -> None:
        if durability != "full":
            raise InvalidInput("object storage knows no other durability than 'full'")
        self._address = parse_address(address)
        options = options_with(options or SlateOptions(), self._address.options, address)
        self.place = self._address.text
        self.read_only = read_only
        self.on_upkeep_due: Callable[[], None] | None = None
        self._options = options
        self.pace_s = self._options.pace_s
        self._clock = clock or SystemClock()
        self._space: FolderSpace | None = None
        """None for a bucket, whose space is unlimited."""
        if self._address.scheme == "file":
            folder = Path(f"/{self._address.prefix}")
            self._space = FolderSpace(folder, limits or Limits(), self._clock)
        self._binding: Binding = bind()
        self._binding.read_timeout_s = options.read_timeout_s
        self._objects = open_objects(self._binding.module, self._address)
        self.objects = ObjectFolder(self._address)
        """The objects below the store's prefix."""
        self._turn, self._lock = threading.Lock(), threading.Lock()
        self._closed = False
        self._recorder = self._binding.module.DefaultMetricsRecorder()
        self._opened_s = self._clock.seconds()
        self._listing: BucketListing | None = None
        self._following: Following | None = None
        self._writing: Writing | None = None
        if not read_only:
            self._check_space(OPENING_BYTES)
            probe(self.objects)
        replayed = self._check_stored(may_create=create and not read_only)
        if read_only:
            self._follow()
        else:
            if before_fencing is not None:
                before_fencing()
            self._writing = self._begin_writing(replayed)

    @property
    def shared(self) -> bool:
        """Whether another process writes: then its commits must be looked for."""
        return self._writing is None or self._writing.ending == "fenced"

    @property
    def writes_alone(self) -> bool:
        """Its writer is the only one: another that begins fences it."""
        return True

    @contextmanager
    def write(self, *, waits: bool = True) -> Iterator[SlateWriter]:
        """Wait for the turn to write; leaving without a commit changes nothing."""
        if not waits and self._turn.locked():
            raise WouldWait
        with self._turn:
            self._check_open()
            writing = self._writing
            if writing is None:
                raise StoreError(f"{self.place} was opened to be read only")
            writing.check()
            yield SlateWriter(writing.image, self._commit)
        if writing.behind >= REPLAYED_MAX and self.on_upkeep_due is not None:
            self.on_upkeep_due()

    @contextmanager
    def read(self) -> Iterator[SlateSnapshot]:
        """A snapshot of what is durable."""
        self._check_open()
        yield SlateSnapshot(self._image())

    def last_seq(self) -> int:
        """The sequence of the newest delta."""
        self._check_open()
        return self._image().last_seq

    def await_change(self, seen: int, stop: threading.Event) -> bool:
        """Look now and then for what the writer has committed."""
        return poll(lambda: self.last_seq() != seen, stop)

    def upkeep(self, alone: AbstractContextManager[object]) -> None:
        """Gather many small commits; the rest SlateDB does by itself."""
        if self._writing is not None and self._writing.behind >= REPLAYED_MAX:
            self._writing.gather()

    def shortage(self) -> Shortage | None:
        """Whether the disk of a folder has too little room; a bucket has no end."""
        return None if self._space is None else self._space.shortage()

    def folder(self) -> Path | None:
        """There is no disk."""
        return None

    def recover(self) -> None:
        """After a commit in doubt: whatever was handed to SlateDB is durable, or will never be."""
        if self._writing is None:
            return
        # SlateDB repeats what is refused without end, and does not say why; the object store does.
        if self._writing.ending == "doubtful":
            self._check_space(OPENING_BYTES)
            if why := refusal(self.objects):
                raise WriteFailed(why)
        try:
            self._writing.recover()
        except CorruptionError as error:
            # SlateDB calls damage whatever a request did not find, also an object that it puts.
            check_commits(self.objects, self._manifest)
            raise WriteFailed(
                f"{error.message}, and no commit is missing; it is tried again"
            ) from error

    def close(self) -> None:
        """Let go of everything; what is committed is durable already."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._writing is not None:
            self._writing.close(None if self.shortage() is None else FULL_CLOSE_S)
        self._following = None

    def describe(self) -> dict[str, Any]:
        """Facts for `stats`."""
        requests = requests_of(self._recorder.snapshot())
        listed = self._listed()
        elapsed_s = self._clock.seconds() - self._opened_s
        return {
            "engine": "slatedb",
            "durability": self.durability,
            "role": "reader" if self.shared else "writer",
            "objects": listed.objects,
            "stored_bytes": listed.bytes,
            "staged_bytes": listed.staged_bytes,
            "commits_to_replay": self._writing.behind if self._writing is not None else 0,
            **{f"{kind}_requests": count for kind, count in requests.items()},
            "month_usd": month_usd(requests, elapsed_s=elapsed_s, stored_bytes=listed.bytes),
        }

    def _listed(self) -> BucketListing:
        """What objects the store has; a listing costs, so it is remembered."""
        now_s = self._clock.seconds()
        found = self._listing
        if found is None or now_s - found.at_s > LISTED_S:
            found = BucketListing(now_s, 0, 0, 0) if found is None else found._replace(at_s=now_s)
            try:
                sizes = [
                    (one.size, one.name.startswith(f"{STAGED}/")) for one in self.objects.list()
                ]
                staged = sum(size for size, is_staged in sizes if is_staged)
                found = BucketListing(now_s, len(sizes), sum(size for size, _ in sizes), staged)
            except StoreError:
                pass  # the object store does not answer: what is known stays
            self._listing = found
        return found

    def rewrite(self, key: bytes, change: Callable[[bytes], bytes]) -> bool:
        """Change a stored cell behind the rules' back, as tests do; False if there is none."""
        assert self._writing is not None
        with self._turn:
            return self._writing.rewrite(key, change)

    def _commit(self, commit: Commit) -> None:
        assert self._writing is not None
        if self._space is not None:
            self._space.check(commit.size_bytes())
        self._writing.commit(commit)

    def _check_space(self, size_bytes: int) -> None:
        if self._space is not None:
            self._space.check(size_bytes)

    def _check_stored(self, *, may_create: bool) -> int:
        """Refuse what is no store, or has lost commits; a store that is created gets its stamp.

        Returns how many commits opening the store replays.
        """
        is_marked = is_reached(self.objects)
        if self._manifest() is not None:
            check_stamp(self.objects)
            return check_commits(self.objects, self._manifest)
        if not may_create:
            raise no_store(self.place, "" if self.read_only else "; create=True makes one")
        if not is_marked:
            put_stamp(self.objects)
        return 0

    def _manifest(self) -> Any:
        return read_manifest(self._binding, self._objects, self._address.prefix, self.place)

    def _begin_writing(self, replayed: int) -> Writing:
        return Writing(
            self._binding,
            self._objects,
            prefix=self._address.prefix,
            place=self.place,
            options=self._options,
            recorder=self._recorder,
            opener=Opener(self.objects),
            replayed=replayed,
            repeats_max=None if self._space is None else FOLDER_REPEATS,
        )

    def _image(self) -> SlateImage:
        writing = self._writing
        if writing is not None and writing.ending != "fenced":
            return writing.readable_image(self._turn)
        return self._follow().image()

    def _follow(self) -> Following:
        with self._lock:
            if self._following is None:
                self._following = Following(
                    self._binding,
                    self._objects,
                    prefix=self._address.prefix,
                    place=self.place,
                    follow_s=self._options.follow_s,
                    clock=self._clock,
                    recorder=self._recorder,
                )
            return self._following

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"{self.place} was closed", path=self.place)
