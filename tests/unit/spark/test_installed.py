"""Promise: the core needs no Spark, and where a part is missing it is said what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

from millstream.errors import CannotOpen
from millstream.spark import installed

LOOKS = """
import sys
import millstream, millstream.aio, millstream.cli
print([name for name in ("pyspark", "pyarrow", "numpy", "pandas", "py4j") if name in sys.modules])
"""


def test_the_core_imports_neither_spark_nor_arrow() -> None:
    done = subprocess.run([sys.executable, "-c", LOOKS], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_missing_pyarrow_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "find_spec", lambda name: None)
    with pytest.raises(CannotOpen, match=r"pip install 'millstream\[spark\]'"):
        installed.check_source()


@pytest.mark.requires("spark")
def test_a_spark_that_is_too_old_for_streams_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyspark

    installed.check_streams()
    monkeypatch.setattr(pyspark, "__version__", "4.1.2")
    with pytest.raises(CannotOpen, match=r"this is Spark 4\.1\.2; readStream needs 4.2"):
        installed.check_streams()
