"""Decoded entries: what routing looks at, read and unpacked once for all queues of a log.

Queues on one log look at the same entries, one queue after the other. What an offset holds never
changes, so an entry that one has read serves the others, whatever the fold did to its row meanwhile;
unless the log is set back: then what was read before is not looked at again.
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
"""Of decoded entries, as they lie in memory."""

RECORD_BYTES = 240
"""What a decoded record takes in memory, beside its bytes: a dictionary of headers, and numbers."""

HEADER_BYTES = 32
"""What each of its headers takes: a text or number of its own."""


@lru_cache(maxsize=4)
def decoded_entry(value: bytes) -> tuple[entries.Entry, list[dict[str, Scalar]]]:
    """An entry and its headers, for those that look at the same few again and again."""
    return _decode(value)


def _decode(value: bytes) -> tuple[entries.Entry, list[dict[str, Scalar]]]:
    entry = entries.decode(value)
    return entry, unpack_visible(entry.headers)


def _memory_bytes(entry: entries.Entry, headers: list[dict[str, Scalar]]) -> int:
    """How much memory a decoded entry takes, about: many times what it takes on disk."""
    texts = 2 * sum(map(len, entry.headers))  # as they are stored, and unpacked
    named = sum(map(len, filter(None, entry.keys)))
    return RECORD_BYTES * len(headers) + HEADER_BYTES * sum(map(len, headers)) + texts + named


class TextIndex:
    """Which of some records have which text in a header; a header is looked at when it is asked for."""

    __slots__ = ("_headers", "_texts")

    def __init__(self, headers: Sequence[Mapping[str, Scalar]]) -> None:
        self._headers = headers
        self._texts: dict[str, dict[str, list[int]]] = {}

    def having(self, name: str, texts: Collection[str]) -> list[int]:
        """The records of which a header is one of some texts, in order; the caller keeps it as it is."""
        found = self._texts.get(name)
        if found is None:
            found = {}
            for index, headers in enumerate(self._headers):
                text = headers.get(name)
                if type(text) is str:
                    found.setdefault(text, []).append(index)
            self._texts[name] = found  # only now: another thread may ask for it at any time
        lists = [found[text] for text in texts if text in found]
        return lists[0] if len(lists) == 1 else sorted(chain.from_iterable(lists))


class DecodedEntry:
    """An entry of a log with its headers, and which of its records have which text in a header."""

    __slots__ = ("_texts", "end", "entry", "first", "headers", "size")

    def __init__(self, first: int, value: bytes) -> None:
        self.entry, self.headers = _decode(value)
        """Each record as it is stored, and its headers."""
        self.first = first
        self.end = first + len(self.headers)
        self.size = _memory_bytes(self.entry, self.headers)
        self._texts = TextIndex(self.headers)

    def having(self, name: str, texts: Collection[str], wanted: range) -> list[int]:
        """Of some records, those of which a header is one of some texts, in order."""
        some = self._texts.having(name, texts)
        low = bisect_left(some, wanted.start)
        return some[low : bisect_left(some, wanted.stop, low)]


class RecentEntries:
    """Entries that were decoded lately, by log and first offset; the longest unused go first."""

    def __init__(self) -> None:
        self._found: OrderedDict[tuple[int, int], DecodedEntry] = OrderedDict()
        self._setbacks: dict[int, int] = {}
        self._bytes = 0
        self._lock = Lock()

    def read(self, rows: Rows, source: QueueSource, stop: int) -> Iterator[DecodedEntry]:
        """The entries of a log from where routing stands, across its gaps."""
        self._note(source.log_id, source.setbacks)
        for low, high in without(source.gaps, source.position, stop):
            while low < high:
                found = self._find(source.log_id, low)
                if found is None:
                    break
                yield found
                low = found.end
            if low < high:
                for first, value in joined_entries_of(rows, source.log_id, start=low, stop=high):
                    yield self._add(source, low, DecodedEntry(first, value))
                    low = first + entries.count(value)

    def _note(self, log_id: int, setbacks: int) -> None:
        """Forget the entries of a log that was set back since."""
        with self._lock:
            if self._setbacks.get(log_id, 0) != setbacks:
                self._setbacks[log_id] = setbacks
                for key in [key for key in self._found if key[0] == log_id]:
                    self._drop(key)

    def _find(self, log_id: int, offset: int) -> DecodedEntry | None:
        with self._lock:
            found = self._found.get((log_id, offset))
            if found is not None:
                self._found.move_to_end((log_id, offset))
            return found

    def _add(self, source: QueueSource, offset: int, found: DecodedEntry) -> DecodedEntry:
        key = source.log_id, offset
        with self._lock:
            if self._setbacks.get(source.log_id, 0) == source.setbacks and key not in self._found:
                self._found[key] = found
                self._bytes += found.size
                while len(self._found) > 1 and (
                    len(self._found) > ENTRIES_KEPT or self._bytes > BYTES_KEPT_MAX
                ):
                    self._drop(next(iter(self._found)))
        return found

    def _drop(self, key: tuple[int, int]) -> None:
        self._bytes -= self._found.pop(key).size
