"""A bucket for the doctor: rows with the state of their checksums, and missing or left objects."""

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
"""Objects that were staged longer ago most likely belong to a job that has ended."""


class ExaminedBucket:
    """A snapshot of a store in a bucket, opened as a reader: it fences no writer and writes nothing."""

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
        """The image of all rows, opened at the first use: damage may prevent opening."""
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
        """The rows, as of the first use."""
        return SlateSnapshot(self.image)

    def close(self) -> None:
        """Release the image."""
        self._image = None

    def walk(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes, bool]]:
        """Yield every row of a range: key, value, and whether its checksum fits."""
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
        """Return the names of objects that the manifest names and the bucket does not have.

        The manifest is read before and after the listing: objects that SlateDB merges in between
        may be missing.
        """
        named = _named(self._manifest())
        stored = {entry.name for entry in self._folder.list("compacted")}
        missing = (named & _named(self._manifest())) - stored
        return [*sorted(missing), *find_replayed(self._folder, self._manifest).missing]

    def left_over(self, now_ms: int) -> list[str]:
        """Describe objects that were staged more than a day ago and that no writer has adopted."""
        folders: dict[str, list[ListedObject]] = {}
        for staged in self._folder.list(STAGED):
            folders.setdefault(staged.name.rpartition("/")[0], []).append(staged)
        return [
            f"{folder}/: {len(objects)} staged objects with "
            f"{sum(staged.size for staged in objects):,} bytes"
            for folder, objects in sorted(folders.items())
            if max(staged.modified_ms for staged in objects) < now_ms - LEFT_OVER_MS
        ]

    def _manifest(self) -> Any:
        return read_manifest(self._binding, self._objects, self._prefix, self._place)


def _named(manifest: Any) -> set[str]:
    """Return the names of the objects with rows in a manifest."""
    trees = [manifest, *manifest.segments]
    views = [view for tree in trees for view in tree.l0]
    views += [view for tree in trees for run_ in tree.compacted for view in run_.sst_views]
    return {f"compacted/{view.sst.id.value}.sst" for view in views}
