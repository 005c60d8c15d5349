"""Following: what handles read that do not write; a few seconds behind the writer, never in its way.

SlateDB's readers move on while they are used. So each of ours stands still (it looks for news once
an hour, and lives for minutes), and a newer one takes its place when a caller wants to see more.
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
    """The newest image that a handle has, and how it gets a newer one."""

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
        """What is known; newer if that is old."""
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
    """What SlateDB says of the database at a prefix; None if there is none."""
    admin = binding.module.AdminBuilder(prefix, objects).build()
    try:
        return run(admin.read_manifest(None), most_s=binding.read_timeout_s)
    except (TimeoutError, binding.module.Error) as error:
        raise cannot_open(error, place) from error


def no_store(place: str, advice: str = "") -> CannotOpen:
    """What is said of a prefix without a store where none is to be made."""
    return CannotOpen(f"there is no store at {place}{advice}", path=place)


def cannot_open(error: Any, place: str) -> CannotOpen:
    """What is said if the object store refuses, or cannot be reached."""
    said = getattr(error, "message", str(error))
    return CannotOpen(
        f"{place} cannot be opened: {said}; check the bucket's name, the credentials in the "
        "environment, and AWS_ENDPOINT_URL if it is set",
        path=place,
        cause=said,
    )


def _end(reader: Any, errors: Any) -> None:
    try:
        run(reader.shutdown())
    except errors:
        pass  # it is not needed any more
