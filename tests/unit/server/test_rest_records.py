"""Records over REST: JSON, base64 and raw bodies, batches, ranges, long polls."""

from __future__ import annotations

import asyncio
import base64
import json

import httpx
import pytest

from millstream.clock import SystemClock
from millstream.server.rest import records
from tests.unit.server.asking import EACH_WAY, Rest, each_way, looped, problem, served, serving

way = EACH_WAY(each_way)

ARROW = "application/vnd.apache.arrow.stream"


@served
async def test_json_values_come_back_as_json_and_bytes_as_base64(rest: Rest) -> None:
    values = [{"a": [1, 2.5, None]}, "text", 12345678901234567890123, None, True]
    for offset, value in enumerate(values):
        answer = await rest.post("/logs/a/records", json={"value": value})
        assert (answer.status_code, answer.json()) == (201, {"offset": offset, "count": 1})
    data = base64.b64encode(b"\xff\x00").decode()
    await rest.post("/logs/a/records", json={"base64": data, "key": "k", "headers": {"n": 1}})
    found = (await rest.get("/logs/a/records")).json()
    assert [record.get("value") for record in found["records"][:5]] == values
    last = found["records"][5]
    assert (last["base64"], last["key"], last["headers"]) == (data, "k", {"n": 1})
    assert (found["next"], found["end_offset"]) == (6, 6)


@served
async def test_a_batch_is_appended_at_once(rest: Rest) -> None:
    records = [{"value": i, "key_base64": "/w==", "timestamp": 5 + i} for i in range(3)]
    answer = await rest.post("/logs/a/records", json={"records": records})
    assert answer.json() == {"offset": 0, "count": 3}
    found = (await rest.get("/logs/a/records?start=1&stop=2")).json()["records"]
    assert [(one["offset"], one["value"], one["timestamp"]) for one in found] == [(1, 1, 6)]
    assert found[0]["key_base64"] == "/w=="
    assert (await rest.post("/logs/a/records", json={"records": []})).json()["count"] == 0


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"value": 1, "base64": ""},
        {"value": 1, "records": []},
        {"records": [{}]},
        {"value": 1, "colour": "red"},
        {"base64": "!"},
        {"value": 1, "key": "a", "key_base64": "YQ=="},
        {"value": 1, "headers": {"a": {"deep": 1}}},
        {"value": 1, "headers": {"a": 2**70}},
        {"value": 1, "headers": {"a": {"base64": "no"}}},
        {"value": 1, "headers": [["a", 1, 2]]},
        {"value": 1, "headers": [[1, 2]]},
        {"value": 1, "headers": ["ab"]},
        {"value": 1, "timestamp": -1},
        {"records": [{"value": 1, "timestamp": 1}, {"value": 1}]},
        {"value": 1, "producer": {"name": "", "sequence": 0}},
    ],
    ids=str,
)
@looped
async def test_what_is_no_record_is_refused(body: object) -> None:
    async with serving() as rest:
        answer = await rest.post("/logs/a/records", json=body)
        assert problem(answer, 422, answer.json()["title"])["title"].startswith("Invalid")
        problem(await rest.get("/logs/a/records"), 404, "NotFound")


@served
async def test_a_raw_body_is_one_record_and_comes_back_so(rest: Rest) -> None:
    headers = {
        "content-type": "image/png",
        "millstream-key": "a%2Fb",
        "millstream-headers": json.dumps({"ü": "ä🌊", "n": 1}),
        "millstream-timestamp": "77",
    }
    await rest.post("/logs/a/records", content=b"\x89PNG", headers=headers)
    raw = await rest.get("/logs/a/records/0")
    assert (raw.content, raw.headers["content-type"]) == (b"\x89PNG", "image/png")
    assert raw.headers["millstream-offset"] == "0"
    assert (raw.headers["millstream-key"], raw.headers["millstream-timestamp"]) == ("a%2Fb", "77")
    told = json.loads(raw.headers["millstream-headers"])
    assert told == {"content-type": "image/png", "ü": "ä🌊", "n": 1}
    shown = await rest.get("/logs/a/records/0", headers={"accept": "application/json"})
    assert base64.b64decode(shown.json()["base64"]) == b"\x89PNG"
    assert shown.json()["key"] == "a/b"


@served
async def test_headers_may_repeat_a_name_and_hold_bytes(rest: Rest) -> None:
    pairs = [["a", 1], ["b", {"base64": "/w=="}], ["a", None]]
    once = {"a": {"base64": "/w=="}, "n": 1.5}
    for headers in (pairs, once):
        answer = await rest.post("/logs/a/records", json={"base64": "", "headers": headers})
        assert answer.status_code == 201
        sent = {"millstream-headers": json.dumps(headers)}
        await rest.post("/logs/a/records", content=b"", headers=sent)
    found = (await rest.get("/logs/a/records")).json()["records"]
    assert [one["headers"] for one in found] == [pairs, pairs, once, once]
    raw = await rest.get("/logs/a/records/0")
    assert json.loads(raw.headers["millstream-headers"]) == pairs
    await rest.post("/logs/a/records", json={"value": 1, "headers": pairs})
    found = (await rest.get("/logs/a/records?start=4")).json()["records"]
    assert found[0]["headers"] == [["content-type", "application/json"], *pairs]
    answer = await rest.get("/logs/a/search", params={"where": "a IS NULL AND n IS NULL"})
    assert [one["offset"] for one in answer.json()["records"]] == [0, 1, 4]


@served
async def test_null_is_neither_empty_nor_the_null_of_json(rest: Rest) -> None:
    for body in ({"base64": None, "key": "k"}, {"base64": ""}, {"value": None}):
        assert (await rest.post("/logs/a/records", json=body)).status_code == 201
    sent = {"millstream-null": "true", "millstream-key": "k", "content-type": "text/plain"}
    assert (await rest.post("/logs/a/records", content=b"", headers=sent)).status_code == 201
    found = (await rest.get("/logs/a/records")).json()["records"]
    null, empty, of_json, raw = found
    assert (null["base64"], "value" in null, null["key"]) == (None, False, "k")
    assert (empty["base64"], "value" in empty) == ("", False)
    assert (of_json["value"], "base64" in of_json) == (None, False)
    assert (raw["base64"], raw["key"], raw.get("headers", {})) == (None, "k", {})
    answer = await rest.get("/logs/a/records/0")
    assert (answer.content, answer.headers["millstream-null"]) == (b"", "true")
    assert "millstream-null" not in (await rest.get("/logs/a/records/1")).headers
    for wrong in ({"millstream-null": "maybe"}, {"millstream-null": "true"}):
        answer = await rest.post("/logs/a/records", content=b"x", headers=wrong)
        problem(answer, 422, "InvalidInput")


@served
async def test_a_raw_body_of_html_cannot_run_in_the_servers_origin(rest: Rest) -> None:
    await rest.post("/logs/a/records", content=b"<script>", headers={"content-type": "text/html"})
    raw = await rest.get("/logs/a/records/0", headers={"accept": "text/html"})
    assert raw.headers["content-security-policy"] == "sandbox; default-src 'none'"
    assert raw.headers["x-content-type-options"] == "nosniff"


@served
async def test_bad_headers_beside_a_raw_body_are_refused(rest: Rest) -> None:
    for bad in ({"millstream-headers": "[1]"}, {"millstream-timestamp": "soon"}):
        answer = await rest.post("/logs/a/records", content=b"x", headers=bad)
        problem(answer, 422, "InvalidInput")


@served
async def test_appends_are_compared_and_repeated_safely(rest: Rest) -> None:
    await rest.post("/logs/a/records", json={"value": 1, "expect_end": 0})
    moved = await rest.post("/logs/a/records", json={"value": 1, "expect_end": 0})
    assert problem(moved, 409, "EndMoved")["data"]["end"] == 1
    body = {"value": 2, "producer": {"name": "p", "sequence": 0}}
    for _ in range(2):
        assert (await rest.post("/logs/a/records", json=body)).json()["offset"] == 1
    raw = "/logs/a/records?producer=p&sequence=1"
    for _ in range(2):
        assert (await rest.post(raw, content=b"x")).json()["offset"] == 2
    problem(await rest.post("/logs/a/records?producer=p", content=b"x"), 422, "InvalidInput")
    gap = {"value": 2, "producer": {"name": "p", "sequence": 9}}
    problem(await rest.post("/logs/a/records", json=gap), 409, "OutOfSequence")


@served
async def test_a_record_that_is_not_there_is_not_found(rest: Rest) -> None:
    problem(await rest.get("/logs/a/records/0"), 404, "NotFound")
    await rest.post("/logs/a/records", json={"value": 1})
    problem(await rest.get("/logs/a/records/1"), 404, "NotFound")
    problem(await rest.get(f"/logs/a/records/{2**63 - 1}"), 404, "NotFound")
    problem(await rest.get("/logs/a/records/x"), 422, "InvalidInput")
    problem(await rest.get(f"/logs/a/records/{2**63}"), 422, "InvalidInput")


@served
async def test_reading_is_paged(rest: Rest) -> None:
    await rest.post("/logs/a/records", json={"records": [{"value": i} for i in range(10)]})
    found, start = [], 0
    while page := (await rest.get(f"/logs/a/records?start={start}&limit=3")).json()["records"]:
        found += [record["value"] for record in page]
        start = page[-1]["offset"] + 1
    assert found == list(range(10))


@looped
async def test_a_long_poll_is_woken_by_an_append() -> None:
    async with serving(clock=SystemClock()) as rest:
        poll = asyncio.create_task(rest.get("/logs/new/records?wait=30"))
        await asyncio.sleep(0)
        await rest.post("/logs/new/records", json={"value": "here"})
        assert [one["value"] for one in (await poll).json()["records"]] == ["here"]


@looped
async def test_a_long_poll_ends_when_its_time_or_the_server_does() -> None:
    async with serving(clock=SystemClock()) as rest:
        problem(await rest.get("/logs/a/records?wait=0.01"), 404, "NotFound")
        await rest.put("/logs/a")
        assert (await rest.get("/logs/a/records?wait=0.01")).json()["records"] == []
        poll = asyncio.create_task(rest.get("/logs/a/records?wait=30"))
        await asyncio.sleep(0)
        rest.core.closing.set()
        assert (await poll).json()["records"] == []
        assert (await rest.get("/logs/a/records?wait=30")).json()["records"] == []
        problem(await rest.get("/logs/a/records?wait=-1"), 422, "InvalidInput")


@served
async def test_forms_that_are_not_there_are_not_acceptable(rest: Rest) -> None:
    answer = await rest.get("/logs/a/records", headers={"accept": "image/png"})
    assert problem(answer, 406, "NotAcceptable")["data"]["offered"] == ["application/json", ARROW]
    await rest.put("/logs/a")
    browser = "text/html,application/xhtml+xml,*/*;q=0.8"
    assert (await rest.get("/logs/a/records", headers={"accept": browser})).status_code == 200


@served
async def test_arrow_without_pyarrow_is_refused_with_advice(rest: Rest) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "find_spec", lambda name: None)
        answer = await rest.get("/logs/a/records", headers={"accept": ARROW})
    assert "millstream[spark]" in problem(answer, 406, "NotAcceptable")["detail"]


@served
async def test_what_curl_sends_by_itself_is_text(rest: Rest) -> None:
    unsaid = {"content-type": "application/x-www-form-urlencoded"}
    said = {"content-type": "text/plain; charset=utf-8"}
    for body, head in (("hällo".encode(), unsaid), (b"\xff\x00", unsaid), (b"said", said)):
        answer = await rest.post("/logs/a/records", content=body, headers=head)
        assert answer.status_code == 201
    text, binary, told = (await rest.get("/logs/a/records")).json()["records"]
    assert text["value"] == "hällo"
    assert (binary["base64"], binary.get("headers")) == ("/wA=", None)
    assert told["value"] == "said"


@served
async def test_json_that_is_not_json_is_malformed(rest: Rest) -> None:
    kind = {"content-type": "application/json"}
    for body in (b"", b"{", b'{"value": nope}', b'{"value": "\xff"}', b'{"value": 1} x'):
        answer = await rest.post("/logs/a/records", content=body, headers=kind)
        problem(answer, 400, "Malformed")
    lone = await rest.post("/logs/a/records", content=b'{"value": "\\ud800"}', headers=kind)
    assert lone.status_code in (400, 422)


@served
async def test_deep_and_dense_json_is_refused(rest: Rest) -> None:
    kind = {"content-type": "application/json"}
    deep = b'{"value": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    answer = await rest.post("/logs/a/records", content=deep, headers=kind)
    problem(answer, 422, "InvalidInput")
    dense = b'{"value": [' + b"1," * 600_000 + b"1]}"
    answer = await rest.post("/logs/a/records", content=dense, headers=kind)
    problem(answer, 413, "TooLarge")


def test_httpx_sends_what_these_tests_mean() -> None:
    assert httpx.Request("GET", "http://here/a%2Fb").url.raw_path == b"/a%2Fb"


@served
async def test_a_log_that_does_not_exist_is_not_found(rest: Rest) -> None:
    await rest.put("/logs/empty")
    assert (await rest.get("/logs/empty/records")).json()["records"] == []
    for address, accept in (
        ("/logs/gone/records", "application/json"),
        ("/logs/gone/records?start=5", "application/json"),
        ("/logs/gone/records/0", "application/json"),
        ("/logs/gone/records/0", "*/*"),
    ):
        found = problem(await rest.get(address, headers={"accept": accept}), 404, "NotFound")
        assert found["data"] == {"name": "gone"}
        assert "first append" in found["detail"]


@served
async def test_a_log_that_is_made_meanwhile_ends_the_wait_for_it(rest: Rest) -> None:
    waiting = asyncio.create_task(rest.get("/logs/a/records?wait=30"))
    await asyncio.sleep(0)
    await rest.post("/logs/a/records", json={"value": "first"})
    (record,) = (await waiting).json()["records"]
    assert record["value"] == "first"


@served
async def test_a_log_that_was_emptied_is_still_there(rest: Rest) -> None:
    await rest.post("/logs/a/records", json={"value": 1})
    await rest.post("/logs/a/truncate", json={"before": 1})
    found = (await rest.get("/logs/a/records")).json()
    assert (found["records"], found["start_offset"], found["end_offset"]) == ([], 1, 1)


@served
async def test_reading_begins_at_a_time_or_with_the_last_records(rest: Rest) -> None:
    records = [{"value": n, "timestamp": 1_000 * n} for n in range(5)]
    await rest.post("/logs/a/records", json={"records": records})

    async def values(query: str) -> list[int]:
        found = (await rest.get(f"/logs/a/records?{query}")).json()
        return [record["value"] for record in found["records"]]

    assert await values("since=2500") == [3, 4]
    assert await values("since=1970-01-01T00:00:01Z&limit=2") == [1, 2]
    assert await values("since=9999") == []
    assert await values("last=2") == [3, 4]
    assert await values("last=99") == [0, 1, 2, 3, 4]
    for wrong in ("since=noon", "since=1970-01-01T00:00:01", "last=0", "last=2&start=1"):
        problem(await rest.get(f"/logs/a/records?{wrong}"), 422, "InvalidInput")
    found = await rest.get("/logs/a/offset?since=1970-01-01T01:00:02%2B01:00")
    assert found.json() == {"offset": 2, "end_offset": 5}
    problem(await rest.get("/logs/a/offset"), 422, "InvalidInput")
    problem(await rest.get("/logs/b/offset?since=5"), 404, "NotFound")
