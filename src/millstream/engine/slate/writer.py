"""The writer of a bucket: the only handle that may change the store, until another fences it.

ending      event                                      error of writes     continued by
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
"""Settings of SlateDB with values other than the defaults."""

REPEATS = "object_store_max_retries"
"""The setting for repeats of a failed request; older releases of SlateDB repeat without end."""

REPLAYED_MAX = 256
"""Number of commits after which they are compacted into one object. The next writer, and every reader,
replays later commits singly."""

GATHERED_AT_OPENING = REPLAYED_MAX // 4
"""A writer that replays as many commits compacts them before its store is open. Otherwise a writer that
is killed again and again before `REPLAYED_MAX` would leave more commits to each successor."""

GATHERING_S = 10.0
"""How long opening waits for the compaction. SlateDB finishes it in the background: it may have to
merge objects first."""


class WriterNote(msgspec.Struct, frozen=True):
    """The content of the object `writer`."""

    name: str


class Opener:
    """The name of one handle, as other handles see it in the object `writer`."""

    def __init__(self, objects: ObjectFolder) -> None:
        self._objects = objects
        self._note = msgspec.json.encode(WriterNote(secrets.token_hex(16)))

    def sign(self) -> None:
        """Put the name of this handle, before it opens the store."""
        self._objects.put(WRITER_OBJECT, self._note)

    def is_last(self) -> bool:
        """True if no other handle has put its name since; `StoreError` without an answer."""
        stored = self._objects.get(WRITER_OBJECT)
        return stored is not None and stored.data == self._note


class Writing:
    """An open database of SlateDB, and the image of its rows that readers see."""

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
        """Open the store, of which `replayed` commits are not compacted.

        `repeats_max`: how often SlateDB repeats a failed request; None: without end.
        """
        self._binding, self._objects = binding, objects
        self._prefix, self._place, self._options = prefix, place, options
        self._module = binding.module
        self._errors = binding.module.Error
        self._recorder, self._opener, self._repeats_max = recorder, opener, repeats_max
        self.ending: Ending = "open"
        self.behind = replayed
        """Commits that are not compacted."""
        self._interrupted = self._is_half_open = False
        self._open()
        if self.behind >= GATHERED_AT_OPENING:
            self.gather(min(GATHERING_S, options.commit_timeout_s))

    def check(self) -> None:
        """Raise an error if a commit could not succeed now; called in the writer's turn."""
        if self._interrupted:
            self._settle()
        self._note_end()
        if self.ending == "fenced":
            raise self._fenced()
        if self.ending != "open":
            raise WriteFailed(f"{self._place} is not ready to write: nothing was stored; try again")

    def commit(self, commit: Commit) -> None:
        """Send a commit to SlateDB, and return when the object store has it."""
        batch = self._module.WriteBatch()
        early = early_part(commit, self.image)
        last_seq = fill(batch, commit if early is None else early.remainder, self.image)
        try:
            if early is not None:
                for blocks in early_batches(self._binding, early):
                    self._make_durable(blocks)
                    self.behind += 1
                self._binding.delete(batch, MARK)
            self._make_durable(batch)
            self._publish(last_seq)
            self.behind += 1
        except (TimeoutError, self._errors) as error:
            self._doubt(error)
        except BaseException:
            self._interrupted = True
            raise

    def gather(self, most_s: float | None = None) -> None:
        """Compact all commits into one object, beside running commits.

        `most_s` is the timeout; None means the timeout of a commit.
        """
        self.behind = 0
        options = self._module.FlushOptions(flush_type=self._module.FlushType.MEM_TABLE)
        if most_s is None:
            most_s = self._options.commit_timeout_s
        try:
            run(self._database.flush_with_options(options), most_s=most_s)
        except (TimeoutError, self._errors):
            pass  # a later upkeep tries again; commits are durable without it

    def readable_image(self, turn: threading.Lock) -> SlateImage:
        """Return the image for readers; after an interrupt, settle the commit first."""
        if self._interrupted and turn.acquire(blocking=False):
            try:
                if self._interrupted:
                    self._settle()
            finally:
                turn.release()
        return self.image

    def recover(self) -> None:
        """Find out whether a commit in doubt is stored."""
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
            raise WriteFailed(f"{self._place} does not answer: {_message(error)}") from error
        self.ending = "open"

    def rewrite(self, key: bytes, change: Callable[[bytes], bytes]) -> bool:
        """Change the stored cell of a key; False without a row."""
        cell = self._binding.get(self.image.view, key)
        if cell is None:
            return False
        batch = self._module.WriteBatch()
        self._binding.put(batch, key, change(cell))
        self._make_durable(batch)
        self._publish(self.image.last_seq)
        return True

    def close(self, most_s: float | None = None) -> None:
        """Close the database; None means the timeout of a commit."""
        if most_s is None:
            most_s = self._options.commit_timeout_s
        if self.ending in ("open", "doubtful"):
            try:
                run(self._database.shutdown(), most_s=most_s)
            except (TimeoutError, self._errors):
                pass  # acknowledged commits are durable already
            self.ending = "closed"

    def _open(self) -> None:
        """Open the database, which fences the writer before."""
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
            # Read the epoch before opening: of two writers that open at once, each would read the
            # epoch of the second afterwards.
            epoch = self._newest_epoch() + 1
            self._database = run(builder.build(), most_s=OPEN_S_MAX)
            self._epoch, self._is_half_open = epoch, False
            snapshot = run(self._database.snapshot())
            self.image = SlateImage(self._binding, snapshot, place=self._place)
            self._drop_early()
        except self._errors.Data as error:
            raise read_error(error, self._errors, self._place) from error
        except self._errors.Closed as error:
            raise self._overtaken(error, epoch) from error
        except (TimeoutError, self._errors) as error:
            raise cannot_open(error, self._place) from error

    def _settings(self) -> Any:
        settings = self._module.Settings.default()
        values = dict(SETTINGS)
        if REPEATS in json.loads(settings.to_json_string()):
            values[REPEATS] = self._repeats_max
        if self._options.cache_folder is not None:
            values["object_store_cache_options.root_folder"] = str(self._options.cache_folder)
            values["object_store_cache_options.max_cache_size_bytes"] = (
                self._options.cache_bytes_max
            )
        for name, value in values.items():
            settings.set(name, json.dumps(value))
        return settings

    def _make_durable(self, batch: Any) -> None:
        most_s = self._options.commit_timeout_s
        written = run(self._database.write(batch), most_s=most_s)
        self._flush()
        run(written.await_durable(), most_s=most_s)

    def _flush(self) -> None:
        options = self._module.FlushOptions(flush_type=self._module.FlushType.WAL)
        run(self._database.flush_with_options(options), most_s=self._options.commit_timeout_s)

    def _publish(self, last_seq: int) -> None:
        snapshot = run(self._database.snapshot())
        self.image = SlateImage(self._binding, snapshot, place=self._place, last_seq=last_seq)

    def _settle(self) -> None:
        """Flush all batches of SlateDB, and publish them to readers."""
        self._flush()
        snapshot = run(self._database.snapshot())
        self.image = SlateImage(self._binding, snapshot, place=self._place)
        self._drop_early()
        self._interrupted = False

    def _drop_early(self) -> None:
        """Delete the early blocks of a large commit that was never made."""
        batch = dropping_batch(self._binding, self.image)
        if batch is not None:
            self._make_durable(batch)
            self._publish(self.image.last_seq)

    def _doubt(self, error: Exception) -> None:
        """Raise `OutcomeUnknown`; the next commit waits until `recover` has found out."""
        self.ending = "doubtful"
        self._note_end()
        raise OutcomeUnknown(
            f"the commit was sent to {self._place}, and its answer is missing: {_message(error)}; "
            "it may or may not be stored",
            cause=_message(error),
        ) from error

    def _note_end(self) -> None:
        """Note whether SlateDB has closed the database by itself, and why."""
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
            pass  # not known yet: `check` asks again before the next commit

    def _newest_epoch(self) -> int:
        """Return the epoch of the newest writer: each writer that opens the store takes the next."""
        admin = self._module.AdminBuilder(self._prefix, self._objects).build()
        manifest = run(admin.read_manifest(None), most_s=self._options.read_timeout_s)
        return 0 if manifest is None else int(manifest.writer_epoch)

    def _is_succeeded(self) -> bool:
        """True if another process has opened the store to write.

        SlateDB also reports `FENCED` if the object store carried out one of its requests twice. A
        newer epoch may come from this handle, whose last opening failed half-way.
        """
        if self._newest_epoch() <= self._epoch:
            return False
        return not (self._is_half_open and self._opener.is_last())

    def _overtaken(self, error: Any, epoch: int) -> MillstreamError:
        """Return the error for a database that SlateDB closed while it opened.

        An epoch above ours belongs to another writer. Otherwise the object store carried out a
        request of SlateDB twice.
        """
        if error.reason is not self._module.CloseReason.FENCED:
            return cannot_open(error, self._place)
        newest = self._newest_epoch()
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
            f"({_message(error)}); nothing was changed, open it again",
            path=self._place,
            cause=_message(error),
        )

    def _fenced(self) -> MillstreamError:
        return Fenced(
            f"another process has opened {self._place} to write, so this one may not any more: "
            "nothing was stored; reads go on, and opening the store again takes the turn back",
            epoch=self._epoch + 1,
            path=self._place,
        )


def _message(error: BaseException) -> str:
    return str(getattr(error, "message", "")) or str(error) or type(error).__name__
