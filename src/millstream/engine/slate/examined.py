"""A bucket as the doctor looks at it: rows with their checksums, and the objects that they lie in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from millstream.clock import SystemClock
from millstream.engine.slate.fast_binding import bind
from millstream.engine.slate.options import SlateOptions
from millstream.engine.slate.probe import check_stamp, find_replayed, is_reached
from millstream.engine.slate.reader import Following, no_store, read_manifest
from millstream.engine.slate.rows import SlateImage, SlateSnapshot, reading, value_of
from millstream.errors import CorruptionError
from millstream.format import keys
from millstream.objects.address import open_objects, parse_address
from millstream.objects.folder import STAGED, ListedObject, ObjectFolder

SCAN_ROWS = 64
LEFT_OVER_MS = 24 * 3600 * 1000
"""What was staged longer ago belongs to a job that has ended, most likely."""


class ExaminedBucket:
    """One snapshot of a store in a bucket, opened as a reader: it fences nobody, and writes nothing."""

    def __init__(self, address: str) -> None:
        parsed = parse_address(address)
        self._binding = bind()
        self._binding.read_timeout_s = SlateOptions().read_timeout_s
        self._objects = open_objects(self._binding.module, parsed)
        self._prefix, self._place = parsed.prefix, parsed.text
        self._folder = ObjectFolder(parsed)
        is_reached(self._folder)
        if self._manifest() is None:
            raise no_store(self._place)
        check_stamp(self._folder)
        self._image: SlateImage | None = None

    @property
    def image(self) -> SlateImage:
        """All rows, opened when they are first asked for: damage may forbid that."""
        if self._image is None:
            following = Following(
                self._binding,
                self._objects,
                prefix=self._prefix,
                place=self._place,
                follow_s=float("inf"),
                clock=SystemClock(),
                recorder=self._binding.module.DefaultMetricsRecorder(),
            )
            self._image = following.image()
        return self._image

    @property
    def snapshot(self) -> SlateSnapshot:
        """The rows, as they were when they were first asked for."""
        return SlateSnapshot(self.image)

    def close(self) -> None:
        """Let go of it."""
        self._image = None

    def walk(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes, bool]]:
        """Every row of a range, its value, and whether its checksum fits."""
        stop = self.image.visible(start, stop)
        while start < stop:
            with reading(self.image):
                cells = self._binding.scan(self.image.view, start, stop, SCAN_ROWS)
            for key, cell in cells:
                try:
                    yield key, value_of(key, cell), True
                except CorruptionError:
                    yield key, cell[:-4], False
            if len(cells) < SCAN_ROWS:
                return
            start = keys.successor(cells[-1][0])

    def missing(self) -> list[str]:
        """The objects that the store needs and that are not in the bucket."""
        named = _named(self._manifest())
        there = {one.name for one in self._folder.list("compacted")}
        gone = (named & _named(self._manifest())) - there  # what was merged meanwhile may go
        return [*sorted(gone), *find_replayed(self._folder, self._manifest).missing]

    def left_over(self, now_ms: int) -> list[str]:
        """What bulk writers staged longer than a day ago, and the writer has not adopted."""
        found: dict[str, list[ListedObject]] = {}
        for one in self._folder.list(STAGED):
            found.setdefault(one.name.rpartition("/")[0], []).append(one)
        return [
            f"{folder}/: {len(some)} staged objects with {sum(one.size for one in some):,} bytes"
            for folder, some in sorted(found.items())
            if max(one.modified_ms for one in some) < now_ms - LEFT_OVER_MS
        ]

    def _manifest(self) -> Any:
        return read_manifest(self._binding, self._objects, self._prefix, self._place)


def _named(manifest: Any) -> set[str]:
    """The objects with rows that a manifest names."""
    parts = [manifest, *manifest.segments]
    views = [view for part in parts for view in part.l0]
    views += [view for part in parts for run_ in part.compacted for view in run_.sst_views]
    return {f"compacted/{view.sst.id.value}.sst" for view in views}
