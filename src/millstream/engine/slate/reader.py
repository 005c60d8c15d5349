"""The reader of a bucket: images for handles that do not write, a second behind the writer.

A reader of SlateDB moves on to newer commits while it is used, so two reads could see two states. So
each reader of ours polls the manifest only once an hour and lives for minutes, and a newer reader
replaces it when its image is too old. A reader never disturbs the writer.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

from millstream.clock import Clock
from millstream.engine.slate.binding import Binding, run
from millstream.engine.slate.options import OPEN_S_MAX
from millstream.engine.slate.rows import SlateImage, read_error
from millstream.errors import CannotOpen

_HOUR_MS = 3_600_000
_MEMTABLE_BYTES_MAX = 256 * 1024 * 1024


class Following:
    """The newest image of a handle, replaced once it is older than `follow_s`."""

    def __init__(
        self,
        binding: Binding,
        objects: Any,
        *,
        prefix: str,
        place: str,
        follow_s: float,
        clock: Clock,
        recorder: Any,
    ) -> None:
        self._binding, self._objects, self._recorder = binding, objects, recorder
        self._prefix, self._place = prefix, place
        self._follow_s, self._clock = follow_s, clock
        self._lock = threading.Lock()
        self._image = self._newest()
        self._made_s = clock.seconds()

    def image(self) -> SlateImage:
        """Return the present image, or a newer one if it is too old."""
        if self._clock.seconds() - self._made_s < self._follow_s:
            return self._image
        with self._lock:
            if self._clock.seconds() - self._made_s >= self._follow_s:
                self._image = self._newest()
                self._made_s = self._clock.seconds()
        return self._image

    def _newest(self) -> SlateImage:
        module = self._binding.module
        builder = module.DbReaderBuilder(self._prefix, self._objects)
        builder.with_metrics_recorder(self._recorder)
        builder.with_reader_mode(module.ReaderMode.FOLLOW_LATEST())
        builder.with_options(
            module.ReaderOptions(
                manifest_poll_interval_ms=_HOUR_MS,
                checkpoint_lifetime_ms=2 * _HOUR_MS,
                max_memtable_bytes=_MEMTABLE_BYTES_MAX,
                skip_wal_replay=False,
            )
        )
        try:
            reader = run(builder.build(), most_s=OPEN_S_MAX)
        except (TimeoutError, module.Error) as error:
            raise read_error(error, module.Error, self._place) from error
        image = SlateImage(self._binding, reader, place=self._place)
        weakref.finalize(image, _end, reader, module.Error)
        return image


def read_manifest(binding: Binding, objects: Any, prefix: str, place: str) -> Any:
    """Read the manifest of the database at a prefix; None without a database."""
    admin = binding.module.AdminBuilder(prefix, objects).build()
    try:
        return run(admin.read_manifest(None), most_s=binding.read_timeout_s)
    except (TimeoutError, binding.module.Error) as error:
        raise cannot_open(error, place) from error


def no_store(place: str, advice: str = "") -> CannotOpen:
    """Return the error for a prefix without a store."""
    return CannotOpen(f"there is no store at {place}{advice}", path=place)


def cannot_open(error: Any, place: str) -> CannotOpen:
    """Return the error for an object store that refuses requests or cannot be reached."""
    cause = getattr(error, "message", str(error))
    return CannotOpen(
        f"{place} cannot be opened: {cause}; check the bucket's name, the credentials in the "
        "environment, and AWS_ENDPOINT_URL if it is set",
        path=place,
        cause=cause,
    )


def _end(reader: Any, errors: Any) -> None:
    try:
        run(reader.shutdown())
    except errors:
        pass  # no image uses the reader any more
