"""Promise: an Iceberg table lies in the catalog that is configured: SQL, REST or Glue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.errors import Conflict
from millstream.spark.tables.sink import Covered
from tests.unit.spark.test_tables import Table, orders

pytestmark = [pytest.mark.requires("lake"), pytest.mark.filterwarnings("ignore")]

SETTING = "PYICEBERG_CATALOG__MILLSTREAM__"


@pytest.fixture(params=["sql", "rest", pytest.param("glue", marks=pytest.mark.requires("s3"))])
def catalog(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """A configured catalog."""
    if request.param == "sql":
        monkeypatch.setenv(f"{SETTING}URI", f"sqlite:///{tmp_path}/catalog.db")
        yield
    elif request.param == "rest":
        from tests.unit.spark.rest_catalog import rest_catalog

        with rest_catalog(tmp_path) as address:
            monkeypatch.setenv(f"{SETTING}URI", address)
            yield
    else:
        from moto import mock_aws

        monkeypatch.setenv(f"{SETTING}TYPE", "glue")
        for name, value in {"REGION": "eu-west-1", "DEFAULT_REGION": "eu-west-1"}.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "test")
        with mock_aws():
            yield


@pytest.mark.usefixtures("catalog")
def test_a_table_lives_in_a_catalog(tmp_path: Path) -> None:
    table = Table(tmp_path / "lake", "iceberg")
    for start in range(0, 40, 10):
        table.append(orders(start, 10))
    assert table.compact() == 4
    again = Table(tmp_path / "lake", "iceberg")
    assert again.sink.covered(["orders"]) == Covered({"orders": 40}, {"orders": 7})
    assert again.upsert(orders(40, 3)) == 0
    with pytest.raises(Conflict, match="another writer changed the table"):
        table.append(orders(40, 3))
    assert len(again.rows()) == 31
    assert again.sink.expire(10**14) >= 4
    assert len(again.rows()) == 31
    assert not (tmp_path / "lake" / "metadata" / "version-hint.text").exists()
    with pytest.raises(Conflict, match="rename one of the folders"):
        Table(tmp_path / "other" / "lake", "iceberg")
