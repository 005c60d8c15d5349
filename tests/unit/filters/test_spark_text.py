"""The Spark SQL text itself, without a Spark: nothing of the user's reaches it unquoted."""

from __future__ import annotations

import re

import pytest

from millstream.filters import parse


def test_a_plain_filter_reads_plainly() -> None:
    assert parse("region = 'eu' AND test").spark_sql(exact=False) == (
        "((try_element_at(`headers`, 'region').s = 'eu') AND (try_element_at(`headers`, 'test').b))"
    )
    assert parse("_log = 'eu' AND _timestamp IN (1, 2)").spark_sql() == (
        "((`log` = 'eu') AND (`timestamp` IN (1L, 2L)))"
    )


def test_a_header_of_another_type_is_false_where_that_makes_a_difference() -> None:
    plain = parse("NOT test").spark_sql(exact=False)
    assert plain == parse("NOT test").spark_sql()
    assert plain == (
        "(NOT coalesce(try_element_at(`headers`, 'test').b, try_element_at(`headers`, 'test').s < '', "
        "try_element_at(`headers`, 'test').i < CAST('-9223372036854775808' AS BIGINT), "
        "nanvl(try_element_at(`headers`, 'test').d, CAST(NULL AS DOUBLE)) > CAST('NaN' AS DOUBLE)))"
    )


def test_a_list_is_one_list_for_each_type() -> None:
    sql = parse("a IN (1, 2.5, 'x', TRUE, 1.0, 9007199254740993, -0.0)").spark_sql()
    a = "try_element_at(`headers`, 'a')"
    assert sql == (
        f"coalesce({a}.s IN ('x'), {a}.i IN (1L, 9007199254740993L, 0L), "
        f"(nanvl({a}.d, CAST(NULL AS DOUBLE)) + 0.0D) IN (1.0D, 2.5D, 0.0D), {a}.b IN (TRUE))"
    )
    thousand = "a IN (" + ", ".join(map(str, range(1_000))) + ")"
    assert len(parse(thousand).spark_sql()) < 20_000


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


def test_a_null_value_is_a_null_in_its_column() -> None:
    assert parse("_value IS NULL").spark_sql() == "(`value` IS NULL)"
    assert "`v`" in parse("_value IS NOT NULL").spark_sql(value="v")


def test_arithmetic_grows_the_text_in_proportion() -> None:
    def length(operands: int) -> int:
        return len(parse(" * ".join(["a"] * operands) + " > b").spark_sql())

    assert length(96) < 2 * length(48) < 4 * length(24)


@pytest.mark.parametrize(
    "text", ["a" + " + a" * 98 + " = 1", "a - (" * 98 + "b" + ")" * 98 + " = 1", "-" * 98 + "a = b"]
)
def test_long_arithmetic_does_not_nest(text: str) -> None:
    deepest = depth = 0
    for sign in parse(text).spark_sql():
        depth += (sign == "(") - (sign == ")")
        deepest = max(deepest, depth)
    assert deepest < 20


def test_dynamic_division_does_not_double_with_every_level() -> None:
    text = "a / (b" * 15 + " / a" + ")" * 15 + " = 1"
    assert len(parse(text).spark_sql()) < 200_000


@pytest.mark.parametrize("pattern", ["x_" * 8_000, "%x" * 8_000, "%x_y" * 4_000])
def test_a_long_pattern_is_cut_into_groups_since_java_calls_once_for_each_part(
    pattern: str,
) -> None:
    sql = parse(f"a LIKE '{pattern}'").spark_sql(exact=False)
    regex = bytes.fromhex(re.findall(r"X'([0-9a-f]+)'", sql)[-1]).decode().removeprefix("(?s)")
    parts = [0]
    for part in re.findall(r"\(\?>|\)|\.\*\??|\.\{\d+\}|(?:\\x\{[0-9a-f]+\})+", regex):
        if part == ")":
            assert parts.pop() <= 60
            continue
        parts[-1] += 1
        if part == "(?>":
            parts.append(0)
    assert parts.pop() <= 60
    assert not parts
