"""How the rows of each kind of engine are damaged, behind its back; the suite of tests knows none by name."""

from __future__ import annotations

from collections.abc import Callable

import apsw

from millstream.engine.memory.engine import MemoryEngine
from millstream.engine.protocol import Engine
from millstream.engine.slate.engine import SlateEngine
from millstream.engine.sqlite.rows import NUMBERED
from millstream.engine.sqlite.schema import RECORD
from millstream.errors import InvalidInput
from millstream.format import keys


def corrupt(engine: Engine, key: bytes) -> None:
    """Flip one bit of a stored value of an engine of any kind: the next read of it must notice."""
    _CORRUPT[engine.describe()["engine"]](engine, key)


def _corrupt_file(engine: Engine, key: bytes) -> None:
    """Flip a bit over a plain connection: pages stay sound, so only the row checksum can tell.

    An empty value gets a byte.
    """
    table = NUMBERED.get(key[1])
    column, at = ("id", keys.number(key)) if table else ("key", key)
    row = f"{table or RECORD} WHERE {column} = ?"
    connection = apsw.Connection(engine.place)
    try:
        row_found = connection.execute(f"SELECT value FROM {row}", (at,)).fetchone()
        if row_found is None:
            raise _missing(key)
        flipped = bytes((row_found[0][0] ^ 8, *row_found[0][1:])) if row_found[0] else b"\x08"
        row = f"{table or RECORD} SET value = ? WHERE {column} = ?"
        connection.execute(f"UPDATE {row}", (flipped, at))
    finally:
        connection.close()


def _corrupt_memory(engine: Engine, key: bytes) -> None:
    assert isinstance(engine, MemoryEngine)
    if key not in dict(engine.survivors()):
        raise _missing(key)
    engine.corrupt(key, bit=3)


def _corrupt_bucket(engine: Engine, key: bytes) -> None:
    """Flip a bit by a write of SlateDB: blocks stay sound, so only the row checksum can tell."""
    assert isinstance(engine, SlateEngine)
    if not engine.rewrite(key, lambda cell: bytes((cell[0] ^ 8, *cell[1:]))):
        raise _missing(key)


def _missing(key: bytes) -> InvalidInput:
    return InvalidInput(f"there is no row {key.hex()} to damage; what is unfolded has no row yet")


_CORRUPT: dict[str, Callable[[Engine, bytes], None]] = {
    "sqlite": _corrupt_file,
    "memory": _corrupt_memory,
    "slatedb": _corrupt_bucket,
}
"""By the name that an engine says of itself."""
