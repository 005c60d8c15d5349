"""The SlateDB engine: rows in objects of a bucket, with one writer at a time on any machine.

A commit is one batch, and returns when the object store has the batch. Opening a store to write fences
the previous writer. Its unsent commits fail with `Fenced`, the outcome of a sent commit is unknown, and
its reads go on. Readers see the last durable commit, and wait for no commit in flight.

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
"""Upper bound of the bytes that opening a store writes: a few small objects."""

FOLDER_REPEATS = 3
"""How often SlateDB repeats a request that a folder refused: a disk does not recover as a server does."""

FULL_CLOSE_S = 2.0
"""Timeout of closing on a full disk: SlateDB tries to compact commits that are durable already."""

LISTED_S = 60.0
"""How long the numbers of a listing are cached: each listing costs requests."""

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
"""Time before which the counted requests do not allow an estimate for a month."""


def requests_of(metrics: Iterable[Any]) -> dict[Kind, int]:
    """Return the number of requests of each kind, as SlateDB has counted them."""
    counts: dict[Kind, int] = dict.fromkeys(USD_PER_REQUEST, 0)
    for metric in metrics:
        if metric.name == "slatedb.object_store.request_count":
            labels = {label.key: label.value for label in metric.labels}
            kind = _KINDS.get(labels.get("api", ""))
            if kind is not None:
                counts[kind] += metric.value[0]
    return counts


def month_usd(requests: dict[Kind, int], *, elapsed_s: float, stored_bytes: int) -> float:
    """Estimate the costs of a month at the rate of requests since the handle was opened."""
    usd = stored_bytes * USD_PER_BYTE_AND_MONTH
    if elapsed_s >= COUNTED_S_MIN:
        requests_usd = sum(USD_PER_REQUEST[kind] * count for kind, count in requests.items())
        usd += requests_usd * MONTH_S / elapsed_s
    return round(usd, 2)


class BucketListing(NamedTuple):
    """The result of a listing of the bucket, and its time."""

    at_s: float
    objects: int
    bytes: int
    staged_bytes: int
    """Bytes that bulk writers have staged and the writer has not adopted, included in `bytes`."""


class SlateWriter(SlateSnapshot):
    """The turn to write."""

    def __init__(self, image: SlateImage, write: Callable[[Commit], None]) -> None:
        super().__init__(image)
        self._write = write

    def commit(self, commit: Commit) -> None:
        """Make a commit durable."""
        self._write(commit)


class SlateEngine:
    """An engine over one prefix of a bucket, without SQL; its handles cannot cross a fork."""

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
        """True if another process writes, so that readers poll for commits."""
        return self._writing is None or self._writing.ending == "fenced"

    @property
    def writes_alone(self) -> bool:
        """Return True: a second writer would fence the first."""
        return True

    @contextmanager
    def write(self, *, waits: bool = True) -> Iterator[SlateWriter]:
        """Wait for the turn to write; leaving without a commit changes no row."""
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
        """Open a snapshot of the durable rows."""
        self._check_open()
        yield SlateSnapshot(self._image())

    def last_seq(self) -> int:
        """Return the sequence of the newest delta."""
        self._check_open()
        return self._image().last_seq

    def await_change(self, seen: int, stop: threading.Event) -> bool:
        """Poll for commits of the writer."""
        return poll(lambda: self.last_seq() != seen, stop)

    def upkeep(self, alone: AbstractContextManager[object]) -> None:
        """Compact many small commits; SlateDB does all other upkeep by itself."""
        if self._writing is not None and self._writing.behind >= REPLAYED_MAX:
            self._writing.gather()

    def shortage(self) -> Shortage | None:
        """Return the shortage on the disk of a folder; a bucket has unlimited space."""
        return None if self._space is None else self._space.shortage()

    def folder(self) -> Path | None:
        """Return None: the rows are on no local disk."""
        return None

    def recover(self) -> None:
        """Settle a commit in doubt: make it durable, or make sure that it never becomes durable."""
        if self._writing is None:
            return
        # SlateDB repeats refused requests without end and without an error. So a request of our own
        # asks the object store first, which names the reason.
        if self._writing.ending == "doubtful":
            self._check_space(OPENING_BYTES)
            if why := refusal(self.objects):
                raise WriteFailed(why)
        try:
            self._writing.recover()
        except CorruptionError as error:
            # SlateDB reports every missing object as damage, also one that it is about to put.
            check_commits(self.objects, self._manifest)
            raise WriteFailed(
                f"{error.message}, and no commit is missing; the store tries again"
            ) from error

    def close(self) -> None:
        """Close the database; commits are durable already."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._writing is not None:
            self._writing.close(None if self.shortage() is None else FULL_CLOSE_S)
        self._following = None

    def describe(self) -> dict[str, Any]:
        """Return facts for `stats`."""
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
        """Count the objects of the store, at most once per `LISTED_S`."""
        now_s = self._clock.seconds()
        listing = self._listing
        if listing is None or now_s - listing.at_s > LISTED_S:
            empty = BucketListing(now_s, 0, 0, 0)
            listing = empty if listing is None else listing._replace(at_s=now_s)
            try:
                sizes = [
                    (stored.size, stored.name.startswith(f"{STAGED}/"))
                    for stored in self.objects.list()
                ]
                staged = sum(size for size, is_staged in sizes if is_staged)
                listing = BucketListing(now_s, len(sizes), sum(size for size, _ in sizes), staged)
            except StoreError:
                pass  # the object store does not answer: the last listing stays
            self._listing = listing
        return listing

    def rewrite(self, key: bytes, change: Callable[[bytes], bytes]) -> bool:
        """Change a stored cell without a commit, for tests; False without a row."""
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
        """Refuse a prefix without a store, or with lost commits; put the stamp of a new store.

        Return the number of commits that opening the store replays.
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
