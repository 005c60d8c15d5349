"""Requirements of the data source beside Spark, and the advice where a requirement is missing."""

from __future__ import annotations

from importlib.util import find_spec

from millstream.errors import CannotOpen

STREAMS_MIN = (4, 2)
"""From here on Spark tells a source how much a batch may take."""


def check_streams() -> None:
    """Raise `CannotOpen` where Spark is too old to stream from a source that minds its limits."""
    from pyspark import __version__

    if tuple(int(number) for number in __version__.split(".")[:2]) < STREAMS_MIN:
        raise CannotOpen(f"this is Spark {__version__}; readStream needs 4.2 or newer")


def check_source() -> None:
    """Raise `CannotOpen` with advice where pyarrow is missing; a cluster needs it on every node."""
    if find_spec("pyarrow") is None:
        raise CannotOpen(
            "the Spark source hands records over in Arrow's form, and pyarrow is not installed "
            "here; on every machine that runs Spark: pip install 'millstream[spark]'"
        )
