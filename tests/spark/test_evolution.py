"""Random histories of schema changes and appends, read by Python and by Spark: both read the same values."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import millstream
from millstream import Millstream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HISTORIES = 4
CHANGES = 8

WIDER = {"int32": "int64", "int64": "number"}
PYTHON: dict[str, Any] = {
    "int32": int,
    "int64": int,
    "number": float,
    "text": str,
    "list": list[int],
}

QUERIES = (
    "select count(*) from rows",
    "select count(id), min(id), max(id), sum(id) from rows",
    "select id % 3, count(*) from rows where id > 20 group by id % 3",
    "select id from rows where id between 5 and 25 and offset % 2 = 0",
    "select l.id, r.offset from rows l join rows r on l.id = r.id + 1 where r.id < 9",
    "select id from rows where id < 3 union all select -id from rows where id < 3",
    "select count(*) from rows where id is null",
    "select id, lag(id) over (order by offset) from rows where id < 12",
)


class Field(msgspec.Struct):
    """A field of a schema of this test."""

    kind: str
    required: bool
    default: Any = None

    def document(self) -> dict[str, Any]:
        """Return the field as JSON Schema."""
        texts: dict[str, dict[str, Any]] = {
            "int32": {"type": "integer", "format": "int32"},
            "int64": {"type": "integer"},
            "number": {"type": "number"},
            "text": {"type": "string"},
            "list": {"type": "array", "items": {"type": "integer"}},
        }
        document = texts[self.kind]
        if self.default is not None:
            document["default"] = self.default
        elif not self.required:
            document["type"] = [document["type"], "null"]
        return document

    def value(self, random: Random) -> Any:
        """Return a value that fits."""
        if self.kind == "text":
            return random.choice(["", "ä", "long" * 9, '"quoted"\n'])
        if self.kind == "list":
            return [random.randrange(9) for _ in range(random.randrange(4))]
        if self.kind == "number":
            return random.choice([0.5, -3.25, 7])
        return random.randrange(-(2 ** (31 if self.kind == "int32" else 52)), 2**31)


class History:
    """A log whose schema changes while it is written, and the records as they were written."""

    def __init__(self, ms: Millstream, seed: int) -> None:
        self.random = Random(seed)
        self.name = f"history{seed}"
        self.log = ms.log(self.name)
        self.fields = {"id": Field("int64", True)}
        self.records: list[dict[str, Any]] = []

    def change(self) -> None:
        """Add a field, widen one, let one be absent, or remove one; then append some records."""
        optional = [name for name, field in self.fields.items() if not field.required]
        match self.random.randrange(5):
            case 0 | 1:
                kind = self.random.choice([*PYTHON])
                field = Field(kind, False)
                field.default = field.value(self.random) if self.random.random() < 0.5 else None
                self.fields[f"f{len(self.records)}"] = field
            case 2:
                for field in self.fields.values():
                    field.kind = (
                        WIDER.get(field.kind, field.kind) if field.default is None else field.kind
                    )
            case 3 if optional:
                del self.fields[self.random.choice(optional)]
            case _:
                pass  # the same schema again
        self.log.set_schema(
            {
                "type": "object",
                "properties": {name: field.document() for name, field in self.fields.items()},
                "required": [name for name, field in self.fields.items() if field.required],
            }
        )
        for _ in range(self.random.randrange(1, 4)):
            self.append()

    def append(self) -> None:
        """Append a batch of records that fit the newest version."""
        batch = []
        for _ in range(self.random.randrange(1, 6)):
            record = {"id": len(self.records) + len(batch)}
            for name, field in self.fields.items():
                if name != "id" and self.random.random() < 0.7:
                    record[name] = field.value(self.random)
            batch.append(record)
        self.log.append_many(batch)
        self.records += batch

    def as_newest(self) -> list[dict[str, Any]]:
        """Return the records as the newest version reads them."""
        return [
            {name: record.get(name, field.default) for name, field in self.fields.items()}
            for record in self.records
        ]

    def python_type(self) -> Any:
        """Return a struct with the fields of the newest version."""
        fields: list[Any] = [
            (name, PYTHON[field.kind])
            if field.required
            else (
                name,
                PYTHON[field.kind] | None,
                msgspec.field(default_factory=lambda f=field: f.default),
            )
            for name, field in self.fields.items()
        ]
        return msgspec.defstruct("Newest", fields, kw_only=True)


@pytest.fixture
def histories(tmp_path: Path) -> list[History]:
    seed = int(os.environ["MILLSTREAM_SEED"])
    with millstream.open(tmp_path / "rows.db") as ms:
        made = [History(ms, seed * HISTORIES + number) for number in range(HISTORIES)]
        for history in made:
            for _ in range(CHANGES):
                history.change()
            if history.random.random() < 0.5:
                ms.fold()
            typed = history.log.read(type=history.python_type())
            assert [msgspec.structs.asdict(value) for value in typed] == history.as_newest()
        return made


@pytest.mark.timeout(600)
def test_python_and_spark_read_a_history_as_its_newest_version(
    spark: SparkSession, tmp_path: Path, histories: list[History]
) -> None:
    for history in histories:
        reader = spark.read.format("millstream").option("subscribe", history.name)
        path, expected = str(tmp_path / "rows.db"), history.as_newest()
        rows = reader.load(path).orderBy("offset").select("value").collect()
        assert [row.value.asDict() for row in rows] == expected
        flat = reader.option("columns", "true").load(path)
        columns = flat.orderBy("offset").select(*history.fields).collect()
        assert [row.asDict() for row in columns] == expected
        name = history.random.choice([*history.fields])
        pruned = flat.orderBy("offset").select(name).collect()
        assert [row[name] for row in pruned] == [record[name] for record in expected]


def answers(spark: SparkSession, query: str, frame: DataFrame) -> list[str]:
    frame.createOrReplaceTempView("rows")
    return sorted(map(str, spark.sql(query).collect()))


@pytest.mark.timeout(600)
def test_queries_over_columns_answer_as_over_parquet(
    spark: SparkSession, tmp_path: Path, histories: list[History]
) -> None:
    history = histories[0]

    def load() -> DataFrame:
        reader = spark.read.format("millstream").option("subscribe", history.name)
        return reader.option("columns", "true").load(str(tmp_path / "rows.db"))

    load().write.parquet(str(tmp_path / "rows.parquet"))
    parquet, reused = spark.read.parquet(str(tmp_path / "rows.parquet")), load()
    for query in QUERIES:
        expected = answers(spark, query, parquet)
        assert answers(spark, query, load()) == expected, query
        assert answers(spark, query, reused) == expected, query
