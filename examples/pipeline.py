"""Consume and produce exactly once: read orders, write invoices, remember both in one commit.

Stop it at any moment and start it again: no order is invoiced twice, and none is left out.

    python examples/pipeline.py [STORE]
"""

from __future__ import annotations

import sys

import millstream


def main(path: str) -> None:
    """Invoice every order that has none."""
    with millstream.open(path) as ms:
        orders = ms.log("orders")
        if not orders.end_offset():
            orders.append_many([{"id": n, "total": 10 * n} for n in range(1, 6)])
        cursor = orders.cursor("invoicing")
        with ms.transaction() as tx:
            tx.sql(
                "CREATE TABLE IF NOT EXISTS invoice (order_id INTEGER PRIMARY KEY, total INTEGER)"
            )
        while records := cursor.take(2):
            with ms.transaction() as tx:
                for record in records:
                    order = record.json()
                    tx.append("invoices", {"order": order["id"], "due": order["total"]})
                    tx.sql("INSERT INTO invoice VALUES (?, ?)", [order["id"], order["total"]])
                tx.ack(cursor, records)
        print(f"{len(ms.log('invoices'))} invoices for {len(orders)} orders")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "pipeline.db")
