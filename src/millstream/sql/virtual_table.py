"""Relations as virtual tables of apsw: SQLite's plan becomes a scan, and rows become columns.

SQLite asks `BestIndexObject` which conditions the table can use, and hands the answer back to
`Filter` as a text, together with the values. Conditions are never marked as done: SQLite compares
again, so a source may return more rows than match. A condition with a collation other than BINARY is
not used, because equal names may differ in their bytes then.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import apsw
import msgspec
from msgspec import Struct

from millstream.sql.relation import Condition, Operator, Relation, Scan, SqlValue
from millstream.threads.database import Millstream

_OPERATORS: dict[int, Operator] = {
    apsw.SQLITE_INDEX_CONSTRAINT_EQ: "=",
    apsw.SQLITE_INDEX_CONSTRAINT_GT: ">",
    apsw.SQLITE_INDEX_CONSTRAINT_GE: ">=",
    apsw.SQLITE_INDEX_CONSTRAINT_LT: "<",
    apsw.SQLITE_INDEX_CONSTRAINT_LE: "<=",
}

_ROWS_ASSUMED = 10_000_000
_ROWS_PER_EQUAL = 1_000
_ROWS_PER_BOUND = 4
"""By which a condition divides the assumed number of rows; only the proportions matter to SQLite."""


class ScanPlan(Struct, frozen=True):
    """The part of a scan that SQLite knows before it has values."""

    conditions: list[tuple[str, Operator]]
    columns: list[str]
    order: Literal["", "ascending", "descending"]


class RelationModule:
    """The module of a relation, as apsw registers it."""

    def __init__(self, relation: Relation, ms: Millstream) -> None:
        self._relation = relation
        self._ms = ms

    def Create(self, *_: Any) -> tuple[str, Any]:
        """Return the declaration and the table; apsw calls it for every connection."""
        return self._relation.declaration, RelationTable(self._relation, self._ms)

    Connect = Create

    def ShadowName(self, _suffix: str) -> bool:
        """Return that no table belongs to the relation."""
        return False


class RelationTable:
    """A relation on one connection."""

    def __init__(self, relation: Relation, ms: Millstream) -> None:
        self._relation = relation
        self._ms = ms

    def BestIndexObject(self, info: apsw.IndexInfo) -> bool:
        """Choose the conditions that narrow the scan, and estimate the cost."""
        relation = self._relation
        chosen: list[tuple[str, Operator]] = []
        rows = float(_ROWS_ASSUMED)
        for which in range(info.nConstraint):
            condition = self._condition(info, which)
            if condition is not None:
                chosen.append(condition)
                info.set_aConstraintUsage_argvIndex(which, len(chosen))
                rows /= _ROWS_PER_EQUAL if condition[1] == "=" else _ROWS_PER_BOUND
        order = self._order(info, chosen)
        columns = [relation.columns[index].name for index in sorted(info.colUsed) if index < 63]
        info.idxStr = msgspec.json.encode(ScanPlan(chosen, columns, order)).decode()
        info.orderByConsumed = bool(order)
        info.estimatedRows = max(1, int(rows))
        info.estimatedCost = max(1.0, rows)
        return True

    def _condition(self, info: apsw.IndexInfo, which: int) -> tuple[str, Operator] | None:
        operator = _OPERATORS.get(info.get_aConstraint_op(which))
        if operator is None or not info.get_aConstraint_usable(which):
            return None
        name = self._relation.columns[info.get_aConstraint_iColumn(which)].name
        if operator not in self._relation.searched.get(name, ()):
            return None
        if info.get_aConstraint_collation(which).upper() != "BINARY":
            return None
        return name, operator

    def _order(
        self, info: apsw.IndexInfo, chosen: list[tuple[str, Operator]]
    ) -> Literal["", "ascending", "descending"]:
        relation = self._relation
        if info.nOrderBy != 1 or (relation.order_within, "=") not in chosen:
            return ""
        if relation.columns[info.get_aOrderBy_iColumn(0)].name != relation.order_by:
            return ""
        return "descending" if info.get_aOrderBy_desc(0) else "ascending"

    def Open(self) -> RelationCursor:
        """Return a cursor."""
        return RelationCursor(self._relation, self._ms)

    def Disconnect(self) -> None:
        """Do nothing: the caller of `register` closes the store."""

    Destroy = Disconnect


class RelationCursor:
    """A pass over a relation. The cursor holds the current row."""

    def __init__(self, relation: Relation, ms: Millstream) -> None:
        self._relation = relation
        self._getters = [column.get for column in relation.columns]
        self._ms = ms
        self._rows: Iterator[Any] = iter(())
        self._row: Any = None

    def Filter(self, _number: int, plan: str, values: tuple[SqlValue, ...]) -> None:
        """Begin a scan."""
        self.Close()
        planned = msgspec.json.decode(plan, type=ScanPlan)
        conditions = tuple(
            Condition(name, operator, value)
            for (name, operator), value in zip(planned.conditions, values, strict=True)
        )
        scan = Scan(conditions, frozenset(planned.columns), planned.order)
        self._rows = iter(()) if scan.is_empty else self._relation.scan(self._ms, scan)
        self.Next()

    def Next(self) -> None:
        """Move to the next row."""
        self._row = next(self._rows, None)

    def Eof(self) -> bool:
        """Return whether the last row has passed."""
        return self._row is None

    def Column(self, index: int) -> SqlValue:
        """Return a column of the row."""
        return self._getters[index](self._row)

    def Rowid(self) -> int:
        """Return nothing of use: the relations have keys instead of row ids."""
        return 0

    def Close(self) -> None:
        """End the scan."""
        close = getattr(self._rows, "close", None)
        if close is not None:
            close()
        self._rows, self._row = iter(()), None
