"""The jar of the connector is as new as its sources, and Spark finds the source in it by name."""

from __future__ import annotations

import sys
import zipfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

TOOL = Path(__file__).resolve().parents[3] / "tools" / "connector.py"


def tool() -> Any:
    spec = spec_from_file_location("connector_tool", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_jar_was_made_of_these_sources() -> None:
    connector = tool()
    assert connector.digest_of_jar() == connector.digest()[:40], "run tools/connector.py"


def test_the_jar_names_its_source_and_holds_a_class_for_each_file() -> None:
    connector = tool()
    with zipfile.ZipFile(connector.JAR) as jar:
        names = jar.namelist()
        assert jar.read(connector.SERVICE).split() == [b"millstream.spark.MillstreamProvider"]
    for path in connector.sources():
        assert f"millstream/spark/{path.stem}.class" in names
