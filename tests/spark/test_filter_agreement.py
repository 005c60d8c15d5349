"""Promise: a filter gives the same answer in Python and in Spark, for every row, ANSI on or off.

Random filters and some chosen ones meet rows with every kind of edge; `make faults` tries thousands.
Each Spark job evaluates many filters as columns of one select, so the whole takes few jobs. To replay a failure, run the
test again: seeds are fixed, and the message names the filter, the row and the SQL.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from millstream.filters import Filter, parse
from tests.unit.filters.cases import (
    AT_THE_CAPS,
    FLOATS,
    INTEGERS,
    STRINGS,
    Row,
    random_condition,
    random_row,
    render,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_200)]

SCHEMA = (
    "id int, headers map<string, struct<s string, i bigint, d double, b boolean>>, "
    "key binary, timestamp bigint, log string, value binary"
)
SEEDS = int(os.environ.get("MILLSTREAM_FILTER_SEEDS", "1"))
"""How often random filters are tried; `make faults` says how often."""
FILTERS = 200
FILTERS_PER_JOB = 25
ROWS = 100

CHOSEN = [
    "a < b", "a <= b", "a > b", "a >= b", "a = b", "a <> b", "NOT (a = b)", "a IS NULL",
    "a + b IS NULL", "a - b IS NULL", "a * b IS NULL", "a / b IS NULL", "a / b = 0", "a / b < 0.5",
    "a + b = b + a", "a + b > a", "-a = b", "-a IS NULL", "+a IS NULL", "a / -1 = b", "a / 0 IS NULL",
    "a / 0.0 IS NULL", "a / 3 = 0", "a * 1.0 = a", "a * 1e308 * 10 IS NULL", "a - 0.5 < b",
    "a = 9007199254740993", "a = 9007199254740993.0", "a < 9223372036854775807", "a >= 1e19",
    "a > -9223372036854775808", "a <= -9223372036854775808", "a BETWEEN b AND 100",
    "a IN (0, 1, 2.5, 9007199254740993)", "a NOT IN (0, 1, 'a')", "a IN (TRUE, 1)", "a = TRUE OR b",
    "a LIKE 'a%'", "a LIKE '%b'", "a LIKE '%a%'", "a LIKE 'a_b'", "a LIKE '_'", "a LIKE '%a%_b%'",
    "a NOT LIKE '%\\%'", "a LIKE '!_%' ESCAPE '!'", "a = '\\' OR a = '''' OR a = '${x}'", "a > '\uffff'",
    "a < '😀'", "a = 'x'') OR (TRUE'",
    "_key = 'a'", "_key IS NULL", "_key >= ''", "_timestamp + 1 > 1", "_log LIKE 'a_'",
    "a + b + a + b + a + b + a + b + a + b + a + b > 0", "a / b / a / b / a / b / a IS NULL",
    "a - (b - (a - (b - (a - (b - a))))) <= b", "-(-(a * b) / (a - 1) + a / (b + 0.5)) > 2",
    "a * 1 * 2 * 3 * 1 * 1 * 1 * 1 * 1 * 1 * 1 * 1 * 1 > b", "- - - - - - - - - - - - - a = b",
    "a + b + a + b + a BETWEEN b + a + b + a + b AND a", "a + b - b + a - a IN (0, 1, -1, 2.5)",
    "NOT (a > 5)", "NOT (a <> 5)", "NOT (a = 'a')", "NOT (a <> 'a')", "NOT (a < b)", "NOT (a <> b)",
    "NOT (a = TRUE)", "NOT (a > TRUE)", "NOT a", "a AND b", "a OR NOT b", "a NOT BETWEEN 1 AND 2.5",
    "a NOT BETWEEN 'a' AND 'b'", "a BETWEEN 'a' AND b", "a NOT BETWEEN FALSE AND TRUE",
    "a NOT IN (1, 2)", "a NOT IN ('a', 'b')", "a NOT IN (TRUE)", "a NOT IN (FALSE, 0, '')",
    "a IN (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)", "a NOT IN (-0.0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)",
    "a IN (0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5, 9.5, 10.5, 9223372036854775808.0, 5e-324)",
    "a IN ('', 'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i', '😀', '${x}', '\\')",
    "a IN (9223372036854775807, 9007199254740992, 9007199254740993.0, -0x8000000000000000, 1, 2, 3, 4, 5, 6, 7)",
    "a NOT LIKE '%'", "NOT (a + 1 = 'x')", "NOT (a + 1 > 5)", "a + 1 LIKE '%'", "a = 0x7fffffffffffffff",
    "a + 9223372036854775807 + -5 IS NULL", "a * (b * -9223372036854775807) = 0", "5 + (a + -9) + b IS NULL",
    "2 * (a * 4611686018427387904) * b IS NULL", "a - 9223372036854775807 - 5 + 7 IS NULL",
    "a = 017 OR a = 1_00L OR a = 0b11 OR a = 0.1f OR a = 0x1p-1",
    "1 = 'a'", "NOT (1 = 'a')", "TRUE > FALSE", "NOT (_timestamp = 'a')", "_key <> 1", "NOT (_log > 5)",
    "_log NOT IN (1, TRUE)", "_timestamp NOT LIKE '5'", "NOT (_key = _timestamp)", "_key = a OR _log = a",
]  # fmt: skip


@pytest.fixture(params=["true", "false"], ids=["ansi", "not ansi"])
def ansi(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.sql.ansi.enabled", request.param)
    yield
    spark.conf.unset("spark.sql.ansi.enabled")


def typed(value: Any) -> tuple[str | None, int | None, float | None, bool | None] | None:
    match value:
        case None:
            return None
        case bool():
            return (None, None, None, value)
        case str():
            return (value, None, None, None)
        case int():
            return (None, value, None, None)
        case _:
            return (None, None, value, None)


def frame(spark: SparkSession, rows: list[Row]) -> DataFrame:
    records = [
        (
            number,
            {name: typed(value) for name, value in row.headers.items()},
            None if row.key is None else bytearray(row.key),
            row.timestamp,
            row.log,
            bytearray(b"") if row.has_value else None,
        )
        for number, row in enumerate(rows)
    ]
    return spark.createDataFrame(records, SCHEMA).coalesce(1).cache()


def assert_agreement(
    rows: list[Row], filters: list[Filter], messages: DataFrame, *, exact: bool = True
) -> None:
    for first in range(0, len(filters), FILTERS_PER_JOB):
        asked = filters[first : first + FILTERS_PER_JOB]
        texts = [each.spark_sql(exact=exact) for each in asked]
        columns = [f"{text} AS f{number}" for number, text in enumerate(texts)]
        answers = messages.selectExpr("id", *columns).collect()
        assert len(answers) == len(rows)
        for answer in answers:
            row = rows[answer[0]]
            for each, found in zip(asked, answer[1:], strict=True):
                expected = each.evaluate(
                    row.headers, row.key, row.timestamp, row.log, has_value=row.has_value
                )
                if not exact:
                    found, expected = found is True, expected is True
                assert found is expected, (each.text, row, each.spark_sql(exact=exact))


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(7, 7 + SEEDS))
def test_random_filters_agree(spark: SparkSession, ansi: None, seed: int) -> None:
    random = Random(seed)
    rows = [random_row(random) for _ in range(ROWS)]
    filters = [parse(render(random_condition(random), random)) for _ in range(FILTERS)]
    messages = frame(spark, rows)
    assert_agreement(rows, filters, messages)
    assert_agreement(rows, filters[:FILTERS_PER_JOB], messages, exact=False)


def test_chosen_filters_agree_on_every_pair_of_edges(spark: SparkSession, ansi: None) -> None:
    edges = [*INTEGERS, *FLOATS, *STRINGS, True, False, None]
    rows = [
        Row({"a": a, "b": b}, b"a" if isinstance(a, str) else None, 5, "ab")
        for a in edges
        for b in edges
        if isinstance(a, str) == isinstance(b, str) or a in ("", "a", "1") or b in ("a", "true")
    ]
    rows += [Row({"a": "x"}, key, 2**63 - 1, None) for key in (b"", b"\xff", b"\xc0\x80", b"a")]
    rows += [Row({"b": math.nan}, None, None, None)]
    filters, messages = [parse(text) for text in CHOSEN], frame(spark, rows)
    assert_agreement(rows, filters, messages)
    assert_agreement(rows, filters, messages, exact=False)


@pytest.mark.parametrize("name", AT_THE_CAPS)
def test_a_filter_at_a_cap_agrees(spark: SparkSession, name: str) -> None:
    texts = ["", "x", "7", "x" * 16_378, "xy" * 8_000, "ab" * 8_000 + "c"]
    values = [0, 1, 2.5, math.nan, 2**63 - 1, *texts, True, False, None]
    rows = [Row({"a": a, "b": b}, None, 5, "ab") for a in values for b in (1, 0.5, "x", True, None)]
    condition, messages = parse(AT_THE_CAPS[name]), frame(spark, rows)
    assert_agreement(rows, [condition], messages)
    # Java refuses to compile some of these, and Spark goes on without: once is enough to see that.
    spark.conf.set("spark.sql.codegen.wholeStage", "false")
    assert_agreement(rows, [condition], messages, exact=False)


def test_a_filter_selects_the_same_rows_in_a_where_clause(spark: SparkSession, ansi: None) -> None:
    random = Random(11)
    rows = [random_row(random) for _ in range(200)]
    messages = frame(spark, rows)
    for text in ("a > 1 AND NOT b", "a + b > 2 OR c LIKE 'a%'", '"order.id" / a > 0 AND a <> 0'):
        condition = parse(text)
        found = {row.id for row in messages.where(condition.spark_sql()).collect()}
        matching = [condition.matches(row.headers, row.key, row.timestamp) for row in rows]
        assert found == {number for number, matches in enumerate(matching) if matches}, text


@pytest.mark.parametrize("setting", ["true", "false"])
def test_backslashes_mean_themselves_under_both_rules_for_literals(
    spark: SparkSession, setting: str
) -> None:
    rows = [Row({"a": text}, None, None, None) for text in ("\\", "\\\\", "\\n", "\n", "'")]
    filters = [
        parse("a = '\\'"),
        parse("a LIKE '%\\n%'"),
        parse("a LIKE '\\__'"),
        parse("a = ''''"),
    ]
    spark.conf.set("spark.sql.parser.escapedStringLiterals", setting)
    try:
        assert_agreement(rows, filters, frame(spark, rows))
    finally:
        spark.conf.unset("spark.sql.parser.escapedStringLiterals")


def test_columns_may_be_named_as_our_own_variables_are(spark: SparkSession) -> None:
    rows = [Row({"p": p, "t": 2.5}, b"k", 5, "orders") for p in (7, -7, "x", None)]
    condition = parse("p + t + p + t + p + t > _timestamp AND p * t * p * t * p < 1000000")
    renamed = frame(spark, rows).toDF("id", "p", "k", "t", "l", "v")
    text = condition.spark_sql(headers="p", key="k", timestamp="t", log="l")
    found = [row[0] for row in renamed.selectExpr(text).collect()]
    assert found == [True, False, None, None]
    assert found == [condition.evaluate(row.headers, row.key, row.timestamp) for row in rows]


def test_columns_may_have_other_names(spark: SparkSession) -> None:
    rows = [Row({"a": 1}, b"k", 5, "orders"), Row({"a": 2}, b"k", 5, "orders")]
    renamed = frame(spark, rows).toDF("id", "odd `name`", "k", "ts ms", "l", "odd value")
    text = parse(
        "a = 1 AND _key = 'k' AND _timestamp = 5 AND _log = 'orders' AND _value IS NOT NULL"
    ).spark_sql(headers="odd `name`", key="k", timestamp="ts ms", log="l", value="odd value")
    assert [row.id for row in renamed.where(text).collect()] == [0]
