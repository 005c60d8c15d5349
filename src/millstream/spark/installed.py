"""What the data source needs beside Spark itself, and what to do where it is missing."""

from __future__ import annotations

from importlib.util import find_spec

from millstream.errors import CannotOpen


def check_source() -> None:
    """Raise `CannotOpen` with advice where pyarrow is missing; a cluster needs it on every node."""
    if find_spec("pyarrow") is None:
        raise CannotOpen(
            "the Spark source hands records over in Arrow's form, and pyarrow is not installed "
            "here; on every machine that runs Spark: pip install 'millstream[spark]'"
        )
