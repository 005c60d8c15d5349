"""Promise: the core needs no Spark, and where a part is missing it is said what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

from millstream.errors import CannotOpen

LOOKS = """
import sys
import millstream, millstream.aio, millstream.cli
print([name for name in ("pyspark", "pyarrow", "numpy", "pandas", "py4j") if name in sys.modules])
"""


def test_the_core_imports_neither_spark_nor_arrow() -> None:
    done = subprocess.run([sys.executable, "-c", LOOKS], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.requires("spark")
def test_a_missing_pyarrow_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from millstream.spark.source import source

    monkeypatch.setattr(source, "find_spec", lambda name: None)
    with pytest.raises(CannotOpen, match=r"pip install 'millstream\[spark\]'"):
        source.check_source()


@pytest.mark.requires("spark")
def test_a_spark_that_is_too_old_for_streams_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyspark

    from millstream.spark.source.source import check_streams

    check_streams()
    monkeypatch.setattr(pyspark, "__version__", "4.1.2")
    with pytest.raises(CannotOpen, match=r"this is Spark 4\.1\.2; readStream needs 4.2"):
        check_streams()
