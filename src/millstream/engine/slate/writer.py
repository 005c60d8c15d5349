"""Writing: the one handle of SlateDB that may change a store, until another one fences it.

ending      what has happened                          writes are told     it goes on by
open        nothing                                    -                   -
doubtful    no answer, or SlateDB has ended itself     `Recovering`        `recover`
fenced      another process writes now                 `Fenced`            opening the store again
closed      the engine was closed                      `Closed`            -

SlateDB gives each writer that opens a store the next epoch, also if opening then fails. Epochs have
no names: a newer epoch may come from a failed try of this handle, or from another process. So each
handle puts its name into the object `writer` below the store's prefix before it opens the store:

    name        text        a random name of one handle

A handle whose opening failed reads that object to learn which of the two happened.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from millstream.engine.commit import Commit
from millstream.engine.slate.binding import Binding, run
from millstream.engine.slate.options import OPEN_S_MAX, SlateOptions
from millstream.engine.slate.reader import cannot_open
from millstream.engine.slate.rows import (
    MARK,
    Deltas,
    SlateImage,
    dropping_batch,
    early_batches,
    early_part,
    fill,
    read_error,
)
from millstream.errors import (
    CannotOpen,
    Fenced,
    MillstreamError,
    OutcomeUnknown,
    StoreError,
    WriteFailed,
)
from millstream.objects.folder import ObjectFolder

WRITER_OBJECT = "writer"


Ending = Literal["open", "doubtful", "fenced", "closed"]

SETTINGS: dict[str, Any] = {
    "flush_interval": None,  # commits drive the flush
    "manifest_poll_interval": "20s",
    "max_unflushed_bytes": 256 * 1024 * 1024,
    "compactor_options.poll_interval": "20s",
    "compactor_options.worker.compactions_poll_interval": "20s",
}
"""What we set of SlateDB's settings."""

REPEATS = "object_store_max_retries"
"""How often SlateDB repeats a request that failed; older versions of it do so without end."""

REPLAYED_MAX = 256
"""Commits after which they are gathered in one object: the next writer, and each reader, replays the
rest one by one."""

GATHERED_AT_OPENING = REPLAYED_MAX // 4
"""A writer that replays so many commits gathers them before its store is open. A writer that is
killed again and again before its own commits are enough would else leave more to each successor."""

GATHERING_S = 10.0
"""How long opening waits for that. SlateDB goes on gathering behind it: it may have to merge objects
first."""


class WriterNote(msgspec.Struct, frozen=True):
    """What the object says."""

    name: str


class Opener:
    """One handle that opens a store to write, as other handles see it."""

    def __init__(self, objects: ObjectFolder) -> None:
        self._objects = objects
        self._note = msgspec.json.encode(WriterNote(secrets.token_hex(16)))

    def sign(self) -> None:
        """Say that this handle is about to open the store."""
        self._objects.put(WRITER_OBJECT, self._note)

    def is_last(self) -> bool:
        """Whether no other handle has said so since; `StoreError` if it cannot be known."""
        found = self._objects.get(WRITER_OBJECT)
        return found is not None and found.data == self._note


class Writing:
    """An open database of SlateDB, and the image that readers see of it."""

    def __init__(
        self,
        binding: Binding,
        objects: Any,
        *,
        prefix: str,
        place: str,
        options: SlateOptions,
        recorder: Any,
        opener: Opener,
        replayed: int = 0,
        repeats_max: int | None = None,
    ) -> None:
        """Open the store: `replayed` commits are not gathered yet.

        `repeats_max`: how often SlateDB repeats a request that failed; None: it does so without end.
        """
        self._binding, self._objects = binding, objects
        self._prefix, self._place, self._options = prefix, place, options
        self._module = binding.module
        self._errors = binding.module.Error
        self._recorder, self._opener, self._repeats_max = recorder, opener, repeats_max
        self.ending: Ending = "open"
        self.behind = replayed
        """Commits that are not gathered yet."""
        self._interrupted = self._is_half_open = False
        self._open()
        if self.behind >= GATHERED_AT_OPENING:
            self.gather(min(GATHERING_S, options.commit_timeout_s))

    def check(self) -> None:
        """Refuse to begin a commit that could not end well; in the writer's turn."""
        if self._interrupted:
            self._settle()
        self._note_end()
        if self.ending == "fenced":
            raise self._fenced()
        if self.ending != "open":
            raise WriteFailed(f"{self._place} is not ready to write: nothing was stored; try again")

    def commit(self, commit: Commit) -> None:
        """Hand a commit to SlateDB, and return when the object store has it."""
        batch, deltas = self._module.WriteBatch(), self._deltas.copy()
        early = early_part(commit, self.image)
        fill(batch, commit if early is None else early.rest, self.image, deltas)
        try:
            if early is not None:
                for blocks in early_batches(self._binding, early):
                    self._make_durable(blocks)
                    self.behind += 1
                self._binding.delete(batch, MARK)
            self._make_durable(batch)
            self._publish(deltas)
            self.behind += 1
        except (TimeoutError, self._errors) as error:
            self._doubt(error)
        except BaseException:
            self._interrupted = True
            raise

    def gather(self, most_s: float | None = None) -> None:
        """Have what was committed written as one object, beside running commits.

        None waits for it as long as for a commit.
        """
        self.behind = 0
        wanted = self._module.FlushOptions(flush_type=self._module.FlushType.MEM_TABLE)
        if most_s is None:
            most_s = self._options.commit_timeout_s
        try:
            run(self._database.flush_with_options(wanted), most_s=most_s)
        except (TimeoutError, self._errors):
            pass  # it is tried again; what is committed is durable as it is

    def readable_image(self, turn: threading.Lock) -> SlateImage:
        """What readers see; after an interrupt, once it is certain how the commit ended."""
        if self._interrupted and turn.acquire(blocking=False):
            try:
                if self._interrupted:
                    self._settle()
            finally:
                turn.release()
        return self.image

    def recover(self) -> None:
        """Make certain what became of a commit in doubt."""
        self._note_end()
        if self.ending != "doubtful":
            return
        try:
            if self._database.status().close_reason is None:
                self._settle()
            elif self._is_succeeded():
                self.ending = "fenced"
                return
            else:
                self._open()
        except (TimeoutError, self._errors) as error:
            raise WriteFailed(f"{self._place} does not answer: {_said(error)}") from error
        self.ending = "open"

    def rewrite(self, key: bytes, change: Callable[[bytes], bytes]) -> bool:
        """Store another cell under a key; False if there is none."""
        cell = self._binding.get(self.image.view, key)
        if cell is None:
            return False
        batch = self._module.WriteBatch()
        self._binding.put(batch, key, change(cell))
        self._make_durable(batch)
        self._publish(self._deltas)
        return True

    def close(self, most_s: float | None = None) -> None:
        """Let go of the database; None waits for SlateDB as long as a commit does."""
        if most_s is None:
            most_s = self._options.commit_timeout_s
        if self.ending in ("open", "doubtful"):
            try:
                run(self._database.shutdown(), most_s=most_s)
            except (TimeoutError, self._errors):
                pass  # what was acknowledged is durable already
            self.ending = "closed"

    def _open(self) -> None:
        """Open the database, which fences whatever wrote before."""
        builder = self._module.DbBuilder(self._prefix, self._objects)
        builder.with_settings(self._settings())
        builder.with_metrics_recorder(self._recorder)
        cache = self._module.FoyerCacheOptions(
            max_capacity=self._options.memory_cache_bytes, shards=4
        )
        builder.with_db_cache(self._module.DbCache.new_foyer_cache(cache), 1)
        self._opener.sign()
        self._is_half_open = True
        epoch = 0
        try:
            # Read before: of two writers that open at once, each would read the epoch of the second.
            epoch = self._found_epoch() + 1
            self._database = run(builder.build(), most_s=OPEN_S_MAX)
            self._epoch, self._is_half_open = epoch, False
            snapshot = run(self._database.snapshot())
            self.image = SlateImage(self._binding, snapshot, place=self._place)
            self._deltas: Deltas = self.image.find_deltas()
            self._drop_early()
        except self._errors.Data as error:
            raise read_error(error, self._errors, self._place) from error
        except self._errors.Closed as error:
            raise self._overtaken(error, epoch) from error
        except (TimeoutError, self._errors) as error:
            raise cannot_open(error, self._place) from error

    def _settings(self) -> Any:
        settings = self._module.Settings.default()
        wanted = dict(SETTINGS)
        if REPEATS in json.loads(settings.to_json_string()):
            wanted[REPEATS] = self._repeats_max
        if self._options.cache_folder is not None:
            wanted["object_store_cache_options.root_folder"] = str(self._options.cache_folder)
            wanted["object_store_cache_options.max_cache_size_bytes"] = (
                self._options.cache_bytes_max
            )
        for name, value in wanted.items():
            settings.set(name, json.dumps(value))
        return settings

    def _make_durable(self, batch: Any) -> None:
        most_s = self._options.commit_timeout_s
        written = run(self._database.write(batch), most_s=most_s)
        self._flush()
        run(written.await_durable(), most_s=most_s)

    def _flush(self) -> None:
        wanted = self._module.FlushOptions(flush_type=self._module.FlushType.WAL)
        run(self._database.flush_with_options(wanted), most_s=self._options.commit_timeout_s)

    def _publish(self, deltas: Deltas) -> None:
        snapshot = run(self._database.snapshot())
        self._deltas = deltas
        self.image = SlateImage(self._binding, snapshot, place=self._place, span=deltas.span())

    def _settle(self) -> None:
        """Everything that SlateDB was handed becomes durable, and readers see it."""
        self._flush()
        snapshot = run(self._database.snapshot())
        self.image = SlateImage(self._binding, snapshot, place=self._place)
        self._deltas = self.image.find_deltas()
        self._drop_early()
        self._interrupted = False

    def _drop_early(self) -> None:
        """Of a large commit that was never made, remove the blocks that were written before it."""
        batch = dropping_batch(self._binding, self.image)
        if batch is not None:
            self._make_durable(batch)
            self._publish(self._deltas)

    def _doubt(self, error: Exception) -> None:
        """The object store may have the commit: say so, and find out before the next one."""
        self.ending = "doubtful"
        self._note_end()
        raise OutcomeUnknown(
            f"the commit was sent to {self._place}, and its answer is missing: {_said(error)}; "
            "it may or may not be stored",
            cause=_said(error),
        ) from error

    def _note_end(self) -> None:
        """Ask SlateDB whether it has ended by itself."""
        if self.ending == "closed":
            return
        reason = self._database.status().close_reason
        if reason is None or self.ending == "fenced":
            return
        self.ending = "doubtful"
        try:
            if reason is self._module.CloseReason.FENCED and self._is_succeeded():
                self.ending = "fenced"
        except (TimeoutError, StoreError, self._errors):
            pass  # not known yet: it is asked again before anything is written

    def _found_epoch(self) -> int:
        """The epoch of the newest writer: each one that opens the store takes the next."""
        admin = self._module.AdminBuilder(self._prefix, self._objects).build()
        found = run(admin.read_manifest(None), most_s=self._options.read_timeout_s)
        return 0 if found is None else int(found.writer_epoch)

    def _is_succeeded(self) -> bool:
        """Whether another process has opened the store to write.

        SlateDB also calls itself fenced if a request of its own was carried out twice. A newer epoch
        may be of this handle: it had opened the store half-way.
        """
        if self._found_epoch() <= self._epoch:
            return False
        return not (self._is_half_open and self._opener.is_last())

    def _overtaken(self, error: Any, epoch: int) -> MillstreamError:
        """What is said if SlateDB ends while it opens: an epoch above ours is another writer's.

        It also ends if the object store carried out a request of its own twice.
        """
        if error.reason is not self._module.CloseReason.FENCED:
            return cannot_open(error, self._place)
        newest = self._found_epoch()
        if newest > epoch:
            return Fenced(
                f"another process opened {self._place} to write while this one was opening it, and "
                "took over: this one changed nothing; write through the server of that process, "
                'read with mode="r", or open the store again to take its turn',
                epoch=newest,
                path=self._place,
            )
        return CannotOpen(
            f"{self._place} cannot be opened: the object store carried out a request twice "
            f"({_said(error)}); nothing was changed, open it again",
            path=self._place,
            cause=_said(error),
        )

    def _fenced(self) -> MillstreamError:
        return Fenced(
            f"another process has opened {self._place} to write, so this one may not any more: "
            "nothing was stored; reads go on, and opening the store again takes the turn back",
            epoch=self._epoch + 1,
            path=self._place,
        )


def _said(error: BaseException) -> str:
    return str(getattr(error, "message", "")) or str(error) or type(error).__name__
