"""Copies of logs over HTTP: two stores brought together by hand, and what is refused."""

from __future__ import annotations

import msgspec
import pytest

from millstream.replica.commands import Parcel
from tests.unit.server.asking import Rest, served, serving

MSGPACK = {"content-type": "application/msgpack"}


async def filled(rest: Rest, count: int = 3) -> None:
    records = [{"value": n, "key": f"k{n}"} for n in range(count)]
    await rest.post("/logs/orders/records", json={"records": records})


@served
async def test_a_log_is_copied_block_by_block(rest: Rest) -> None:
    await filled(rest)
    (copy,) = (await rest.get("/replica/logs")).json()["copies"]
    assert (copy["name"], copy["end_offset"], copy["epoch"]) == ("orders", 3, 0)
    async with serving() as other:
        start = {key: copy[key] for key in ("base_offset", "base_hash", "owner", "epoch")}
        assert (await other.put("/replica/logs/orders", json=start)).status_code == 201
        assert (await other.put("/replica/logs/orders", json=start)).status_code == 201
        for compress in ("true", "false"):
            parcel = await rest.get(
                f"/replica/logs/orders/blocks?start=0&stop=3&compress={compress}"
            )
            assert parcel.headers["content-type"] == "application/msgpack"
        path = "/replica/logs/orders/blocks?expect_end=0"
        adopted = await other.post(path, content=parcel.content, headers=MSGPACK)
        assert adopted.json() == {"end_offset": 3}
        again = await other.post(path, content=parcel.content, headers=MSGPACK)
        assert again.status_code == 409
        assert (await other.put("/replica/logs/orders", json=start)).status_code == 200
        there = (await other.get("/replica/logs/orders")).json()
        assert there["end_hash"] == copy["end_hash"]
        assert there["owner"] == copy["owner"]
        assert (await other.get("/replica/logs/orders/hash?offset=3")).json() == {
            "offset": 3,
            "hash": copy["end_hash"],
        }
        refused = await other.post("/logs/orders/records", json={"value": 1})
        assert (refused.status_code, refused.json()["title"]) == (409, "NotOwner")


@served
async def test_a_parcel_that_is_not_right_is_refused_and_nothing_stored(rest: Rest) -> None:
    await filled(rest)
    parcel = msgspec.msgpack.decode(
        (await rest.get("/replica/logs/orders/blocks?start=0&stop=3")).content, type=Parcel
    )
    forged = msgspec.structs.replace(parcel, digest=bytes(32))
    async with serving() as other:
        start = {"base_offset": 0, "base_hash": "0" * 64, "owner": "somebody"}
        await other.put("/replica/logs/orders", json=start)
        for body in (b"", b"\xc1", b"garbage", msgspec.msgpack.encode(forged), b"\x90"):
            answer = await other.post(
                "/replica/logs/orders/blocks?expect_end=0", content=body, headers=MSGPACK
            )
            assert answer.status_code == 422, answer.text
        answer = await other.post("/replica/logs/orders/blocks?expect_end=0", json={})
        assert answer.status_code == 415
        assert (await other.get("/logs/orders")).json()["end_offset"] == 0


@served
async def test_pages_go_on_after_a_name(rest: Rest) -> None:
    for name in ("a", "b", "c"):
        await rest.post(f"/logs/{name}/records", json={"value": 1})
    page = (await rest.get("/replica/logs?limit=2")).json()
    assert [copy["name"] for copy in page["copies"]] == ["a", "b"]
    page = (await rest.get(f"/replica/logs?limit=2&after={page['after']}")).json()
    assert ([copy["name"] for copy in page["copies"]], page["after"]) == (["c"], None)
    page = (await rest.get("/replica/logs?pattern=b")).json()
    assert [copy["name"] for copy in page["copies"]] == ["b"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/replica/logs/none", 404),
        ("/replica/logs/none/hash?offset=0", 404),
        ("/replica/logs/none/blocks?start=0&stop=1", 404),
        ("/replica/logs/orders/hash?offset=99", 416),
        ("/replica/logs/orders/hash", 422),
        ("/replica/logs/orders/blocks?start=99&stop=100", 416),
        ("/replica/logs/orders/blocks?start=-1&stop=1", 422),
    ],
)
def test_what_is_not_there_is_told(path: str, status: int) -> None:
    @served
    async def ask(rest: Rest) -> None:
        await filled(rest)
        assert (await rest.get(path)).status_code == status

    ask()
