"""A bucket as the doctor looks at it: rows with their checksums, and the objects that they lie in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from millstream.clock import SystemClock
from millstream.errors import CorruptionError
from millstream.store.object_folder import ObjectFolder
from millstream.store.slate_address import open_objects, parse_address
from millstream.store.slate_binding import bind, run
from millstream.store.slate_following import Following, cannot_open, check_there
from millstream.store.slate_rows import SlateSnapshot, reading, value_of

SCAN_ROWS = 64


class ExaminedBucket:
    """One snapshot of a store in a bucket, opened as a reader: it fences nobody, and writes nothing."""

    def __init__(self, address: str) -> None:
        parsed = parse_address(address)
        self._binding = bind()
        self._objects = open_objects(self._binding.module, parsed)
        self._prefix, self._place = parsed.prefix, parsed.text
        self._folder = ObjectFolder(parsed)
        check_there(self._binding, self._objects, prefix=self._prefix, place=self._place, advice="")
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
        self.snapshot = SlateSnapshot(self._image)

    def close(self) -> None:
        """Let go of it."""
        del self._image, self.snapshot

    def walk(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes, bool]]:
        """Every row of a range, its value, and whether its checksum fits."""
        while start < stop:
            with reading(self._image):
                cells = self._binding.scan(self._image.view, start, stop, SCAN_ROWS)
            for key, cell in cells:
                try:
                    yield key, value_of(key, cell), True
                except CorruptionError:
                    yield key, cell[:-4], False
            if len(cells) < SCAN_ROWS:
                return
            start = cells[-1][0] + b"\x00"

    def missing(self) -> list[str]:
        """The objects that the store names and that are not in the bucket."""
        admin = self._binding.module.AdminBuilder(self._prefix, self._objects).build()
        try:
            manifest = run(admin.read_manifest(None))
        except self._binding.module.Error as error:
            raise cannot_open(error, self._place) from error
        there = {one.name for one in self._folder.list("compacted")}
        return sorted(name for name in _named(manifest) if name not in there)


def _named(manifest: Any) -> set[str]:
    """The objects with rows that a manifest names."""
    parts = [manifest, *manifest.segments]
    views = [view for part in parts for view in part.l0]
    views += [view for part in parts for run_ in part.compacted for view in run_.sst_views]
    return {f"compacted/{view.sst.id.value}.sst" for view in views}
