"""The header of a SQLite file, and its list of free pages: fields that SQLite does not check.

A flipped bit there can make SQLite ignore a write-ahead log, hand out a page that is in use, or write
a map of pointers over one. So the fields are compared before SQLite opens the file.

    at   field                          must be
    16   bytes of a page                a power of two
    18   versions to write and to read  both 1 (rollback journal) or both 2 (write-ahead log)
    28   pages                          as many as the file has; more only as zeros, kept ahead
    32   free pages: the first, number  a list of pages of the file, each once
    44   format of the schema           1 to 4; 0 in a database without tables
    52   largest root page              0 without `auto_vacuum`, which our new files have
    56   encoding of texts              1 to 3, or 0; a store that we made has 1, UTF-8

With a write-ahead log of a dead process, the first page may lie in the log. Then only the fields that
SQLite reads before the log are compared.
"""

from __future__ import annotations

from io import BufferedReader

NONE, FULL, INCREMENTAL = range(3)
"""The values of `auto_vacuum`: how a database returns its free pages to the disk."""

HEADER_BYTES = 100
MAGIC = b"SQLite format 3\x00"

WAL_VERSIONS = b"\x02\x02"
_VERSIONS = (b"\x01\x01", WAL_VERSIONS)
_PAGE_BYTES_MIN, _PAGE_BYTES_MAX = 512, 65_536
_FRACTIONS = bytes((64, 32, 32))


def page_bytes_of(header: bytes) -> int:
    """Return the bytes of a page by the header; 0 for an impossible size."""
    size = int.from_bytes(header[16:18], "big")
    size = _PAGE_BYTES_MAX if size == 1 else size
    return size if is_page_size(size) else 0


def is_page_size(size: int) -> bool:
    """True if SQLite allows pages of this size."""
    return _PAGE_BYTES_MIN <= size <= _PAGE_BYTES_MAX and size & (size - 1) == 0


def page_count_of(header: bytes) -> int:
    """Return the number of pages by the header; 0 if the header does not maintain it."""
    return int.from_bytes(header[28:32], "big") if header[24:28] == header[92:96] else 0


def header_problem(file: BufferedReader, size: int, *, has_log: bool) -> str | None:
    """Describe damage in the header of an open file, or in its list of free pages; None without."""
    file.seek(0)
    header = file.read(HEADER_BYTES)
    page_bytes = page_bytes_of(header)
    if not page_bytes or header[21:24] != _FRACTIONS:
        return "its header is not what was written: the size of a page is none that SQLite knows"
    if header[18:20] not in _VERSIONS:
        return "its header is not what was written: it names no kind of journal that SQLite knows"
    if has_log:
        is_log = header[18:20] == _VERSIONS[1]
        return (
            None if is_log else "its header is not what was written: it denies the -wal beside it"
        )
    is_new = header[44:48] == header[56:60] == bytes(4) and _has_no_tables(file)
    if int.from_bytes(header[44:48], "big") not in (1, 2, 3, 4) and not is_new:
        return "its header is not what was written: the format of the schema is unknown"
    if int.from_bytes(header[56:60], "big") not in (1, 2, 3) and not is_new:
        return "its header is not what was written: the encoding of texts is unknown"
    pages = page_count_of(header)
    if pages and size > pages * page_bytes and _has_content(file, pages * page_bytes):
        return (
            f"its header is not what was written: it says {pages:,} pages, and the file has "
            f"{size // page_bytes:,}"
        )
    return _free_list_problem(file, header, page_bytes, size // page_bytes)


def _has_no_tables(file: BufferedReader) -> bool:
    """Whether the first page holds no entry of the schema: SQLite has not set its format yet."""
    file.seek(HEADER_BYTES)
    return file.read(5) == b"\x0d\0\0\0\0"


def _has_content(file: BufferedReader, start: int) -> bool:
    file.seek(start)
    while piece := file.read(1 << 16):
        if piece.count(0) != len(piece):
            return True
    return False


def _free_list_problem(
    file: BufferedReader, header: bytes, page_bytes: int, pages: int
) -> str | None:
    """Describe damage of the free list: a chain of trunk pages with numbers of free pages."""
    trunk, count = int.from_bytes(header[32:36], "big"), int.from_bytes(header[36:40], "big")
    usable = page_bytes - header[20]
    free: set[int] = set()
    count_listed = 0
    while trunk:
        if not 1 < trunk <= pages or trunk in free:
            return f"its list of free pages leads to page {trunk:,}"
        file.seek((trunk - 1) * page_bytes)
        page = file.read(page_bytes)
        leaves = int.from_bytes(page[4:8], "big")
        if leaves > usable // 4 - 2:
            return f"page {trunk:,} is no list of free pages"
        numbers = {int.from_bytes(page[at : at + 4], "big") for at in range(8, 8 + 4 * leaves, 4)}
        count_listed += 1 + leaves
        free |= numbers
        free.add(trunk)
        if len(free) != count_listed or not all(1 < number <= pages for number in numbers):
            return f"the list of free pages in page {trunk:,} is not what was written"
        trunk = int.from_bytes(page[:4], "big")
    if count_listed != count:
        return f"its header says {count:,} free pages, and the list has {count_listed:,}"
    return None
