"""Decoded entries: a cache of entries that routing has read, shared by all queues of a log.

Queues on the same log read the same entries in turn. The records at an offset of a log id never
change, so an entry decoded for a queue also serves all other queues, even after the fold has moved
its row. Without the cache, routing takes twice the processor time for 8 queues with filters on a log,
and 3.4 times for 50 (2026-11). Blocks of `log.reading.recent` are another cache: they contain the
payloads, which routing does not read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from threading import Lock

from millstream.format import entries
from millstream.header import Scalar
from millstream.log.model.block import unpack_visible
from millstream.log.model.head import without
from millstream.log.reading.reader import joined_entries_of
from millstream.queue.rules.sources import QueueSource
from millstream.store.state.view import Rows

ENTRIES_KEPT = 2_000
BYTES_KEPT_MAX = 16 * 1024 * 1024
"""The most memory that decoded entries may take."""

RECORD_BYTES = 240
"""The memory of a decoded record besides its bytes: a dictionary of headers, and numbers."""

HEADER_BYTES = 32
"""The memory of a header: a text or a number."""


@lru_cache(maxsize=4)
def decoded_entry(value: bytes) -> tuple[entries.Entry, list[dict[str, Scalar]]]:
    """Return an entry and its headers; cached for callers that read the same few entries
    repeatedly.
    """
    return _decode(value)


def _decode(value: bytes) -> tuple[entries.Entry, list[dict[str, Scalar]]]:
    entry = entries.decode(value)
    return entry, unpack_visible(entry.headers)


def _memory_bytes(entry: entries.Entry, headers: list[dict[str, Scalar]]) -> int:
    """Estimate the memory of a decoded entry, many times its size on disk."""
    texts = 2 * sum(map(len, entry.headers))  # stored and unpacked
    named = sum(map(len, filter(None, entry.keys)))
    return RECORD_BYTES * len(headers) + HEADER_BYTES * sum(map(len, headers)) + texts + named


class TextIndex:
    """An index from a header's texts to records, built on the first use of the header."""

    __slots__ = ("_headers", "_texts")

    def __init__(self, headers: Sequence[Mapping[str, Scalar]]) -> None:
        self._headers = headers
        self._texts: dict[str, dict[str, list[int]]] = {}

    def having(self, name: str, texts: Collection[str]) -> list[int]:
        """Return the records with a text of `texts` in a header, in order; callers must not change
        it.
        """
        by_text = self._texts.get(name)
        if by_text is None:
            by_text = {}
            for index, headers in enumerate(self._headers):
                text = headers.get(name)
                if type(text) is str:
                    by_text.setdefault(text, []).append(index)
            self._texts[name] = (
                by_text  # assigned last, because other threads read it without a lock
            )
        lists = [by_text[text] for text in texts if text in by_text]
        return lists[0] if len(lists) == 1 else sorted(chain.from_iterable(lists))


class DecodedEntry:
    """An entry of a log with its decoded headers, and an index of their texts."""

    __slots__ = ("_texts", "end", "entry", "first", "headers", "size")

    def __init__(self, first: int, value: bytes) -> None:
        self.entry, self.headers = _decode(value)
        """The records as stored, and their headers."""
        self.first = first
        self.end = first + len(self.headers)
        self.size = _memory_bytes(self.entry, self.headers)
        self._texts = TextIndex(self.headers)

    def having(self, name: str, texts: Collection[str], indexes: range) -> list[int]:
        """Return the records of a range whose header has any of these texts, in order."""
        matching = self._texts.having(name, texts)
        low = bisect_left(matching, indexes.start)
        return matching[low : bisect_left(matching, indexes.stop, low)]


class RecentEntries:
    """A least-recently-used cache of decoded entries, by log and first offset."""

    def __init__(self) -> None:
        self._entries: OrderedDict[tuple[int, int], DecodedEntry] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def read(self, rows: Rows, source: QueueSource, stop: int) -> Iterator[DecodedEntry]:
        """Yield the entries of a log from the routing position on, across its gaps."""
        for low, high in without(source.gaps, source.position, stop):
            while low < high:
                entry = self._find(source.log_id, low)
                if entry is None:
                    break
                yield entry
                low = entry.end
            if low < high:
                for first, value in joined_entries_of(rows, source.log_id, start=low, stop=high):
                    yield self._add(source.log_id, low, DecodedEntry(first, value))
                    low = first + entries.count(value)

    def _find(self, log_id: int, offset: int) -> DecodedEntry | None:
        with self._lock:
            entry = self._entries.get((log_id, offset))
            if entry is not None:
                self._entries.move_to_end((log_id, offset))
            return entry

    def _add(self, log_id: int, offset: int, entry: DecodedEntry) -> DecodedEntry:
        key = log_id, offset
        with self._lock:
            if key not in self._entries:
                self._entries[key] = entry
                self._bytes += entry.size
                while len(self._entries) > 1 and (
                    len(self._entries) > ENTRIES_KEPT or self._bytes > BYTES_KEPT_MAX
                ):
                    self._drop(next(iter(self._entries)))
        return entry

    def _drop(self, key: tuple[int, int]) -> None:
        self._bytes -= self._entries.pop(key).size
