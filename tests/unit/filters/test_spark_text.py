"""The Spark SQL text itself, without a Spark: nothing of the user's reaches it unquoted."""

from __future__ import annotations

import re

import pytest

from millstream.filters import parse


def test_a_plain_filter_reads_plainly() -> None:
    assert parse("region = 'eu' AND NOT test").spark_sql() == (
        "((try_element_at(`headers`, 'region').s = 'eu') "
        "AND (NOT try_element_at(`headers`, 'test').b))"
    )


@pytest.mark.parametrize(
    "text", ["'", "\\", "x' OR '1'='1", "${env}", "é", "\n", "--", "`", "\0", '"']
)
def test_anything_odd_in_a_string_becomes_hexadecimal(text: str) -> None:
    quoted = text.replace("'", "''")
    name = text.replace('"', '""')
    sql = parse(f"a = '{quoted}' OR a LIKE '{quoted}%b_' OR \"{name}\" IN ('{quoted}')").spark_sql()
    if text != "--":
        assert text not in re.sub(r"'[A-Za-z0-9 _.,:;/@+=-]*'|`headers`", "", sql)
        assert f"X'{text.encode().hex()}'" in sql


def test_column_names_are_quoted() -> None:
    text = "_key = 'a' AND _timestamp = 1 AND _log = 'b' AND c"
    sql = parse(text).spark_sql(headers="h`; DROP", key="k", timestamp="t", log="l")
    assert "`h``; DROP`" in sql
    assert {"`k`", "`t`", "`l`"} <= set(re.findall(r"`\w+`", sql))


def test_arithmetic_grows_the_text_no_faster_than_its_square() -> None:
    def length(operands: int) -> int:
        return len(parse(" * ".join(["a"] * operands) + " > 0").spark_sql())

    assert length(24) < 5 * length(12)


def test_dynamic_division_does_not_double_with_every_level() -> None:
    text = "a / (b" * 15 + " / a" + ")" * 15 + " = 1"
    assert len(parse(text).spark_sql()) < 200_000
