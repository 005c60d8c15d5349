"""A web application: an order and its mail are one commit, and a worker sends in the same process.

It needs Millstream with the extra `server`, which brings Starlette and uvicorn. The order's row and
the message are stored together or not at all, so no mail is sent for an order that failed, and none
is forgotten.

    uvicorn --app-dir examples webshop:app
    curl -d '{"customer": "alice", "item": "tea"}' http://127.0.0.1:8000/orders
    curl http://127.0.0.1:8000/orders
"""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from millstream import HandlerTransaction, Message, aio

TABLE = """CREATE TABLE IF NOT EXISTS orders (
    id TEXT PRIMARY KEY, customer TEXT NOT NULL, item TEXT NOT NULL, mailed INTEGER DEFAULT 0
)"""


async def send(message: Message, tx: HandlerTransaction) -> None:
    """Send one mail. That it was sent, and that the message is done, is one commit."""
    mail = message.json()
    print(f"mail to {mail['to']}: your {mail['item']} is on its way", flush=True)
    tx.sql("UPDATE orders SET mailed = 1 WHERE id = ?", [mail["order"]])


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """Open the store, and work on its mail while the application runs."""
    async with await aio.open(os.environ.get("WEBSHOP_STORE", "webshop.db")) as ms:
        app.state.ms = ms
        async with ms.transaction() as tx:
            tx.sql(TABLE)
        mail = await ms.create_queue("mail", lease=30)
        async with mail.worker(send, concurrency=10):
            yield


async def create_order(request: Request) -> JSONResponse:
    """Store an order and the message about it, in one commit."""
    order, number = await request.json(), uuid.uuid4().hex
    async with request.app.state.ms.transaction() as tx:
        tx.sql(
            "INSERT INTO orders (id, customer, item) VALUES (?, ?, ?)",
            [number, order["customer"], order["item"]],
        )
        tx.put("mail", {"to": order["customer"], "item": order["item"], "order": number})
    return JSONResponse({"order": number}, status_code=201)


async def list_orders(request: Request) -> JSONResponse:
    """All orders, and whether their mail was sent."""
    found = await request.app.state.ms.sql("SELECT id, customer, item, mailed FROM orders")
    names = ("order", "customer", "item", "mailed")
    return JSONResponse([dict(zip(names, row, strict=True)) for row in found])


app = Starlette(
    lifespan=lifespan,
    routes=[
        Route("/orders", create_order, methods=["POST"]),
        Route("/orders", list_orders, methods=["GET"]),
    ],
)
