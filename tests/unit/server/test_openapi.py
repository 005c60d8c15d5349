"""The OpenAPI document and its page: complete, consistent, and true to what is answered."""

from __future__ import annotations

import re
from functools import cache
from html.parser import HTMLParser
from typing import Any

import msgspec

from millstream.server.auth.access import Principal
from millstream.server.auth.permission import parse_permissions
from millstream.server.docs import examples
from millstream.server.docs.endpoints import ENDPOINTS, PAGE, document_bytes, routes
from millstream.server.pages import files
from tests.unit.server.asking import Rest, served, serving
from tests.unit.server.guarded import guarded, in_loop


@cache
def document() -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(document_bytes())
    return found


VOID = {"meta", "br", "hr", "img", "input", "link"}


def references(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"]} if "$ref" in node else set()
        return own.union(*(references(value) for value in node.values()))
    if isinstance(node, list):
        return set().union(*(references(value) for value in node))
    return set()


def test_every_reference_leads_somewhere_and_no_schema_is_left_over() -> None:
    found = document()
    known = {
        f"#/components/{kind}/{name}"
        for kind in ("schemas", "responses")
        for name in found["components"][kind]
    }
    assert references(found) == known


def test_every_endpoint_is_in_the_document_with_its_own_id() -> None:
    paths = document()["paths"]
    operations = [one for methods in paths.values() for one in methods.values()]
    assert len(operations) == len(ENDPOINTS) == len({one["operationId"] for one in operations})
    for endpoint in ENDPOINTS:
        operation = paths[endpoint.path][endpoint.method.lower()]
        assert operation["summary"]
        names = {p["name"] for p in operation.get("parameters", []) if p["in"] == "path"}
        assert names == set(re.findall(r"\{(\w+)\}", endpoint.path))


@served
async def test_the_document_is_served(rest: Rest) -> None:
    answer = await rest.get("/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["openapi"] == "3.1.0"
    assert answer.json() == msgspec.json.decode(msgspec.json.encode(document()))


class Tags(HTMLParser):
    """Checks that tags are closed in order, and gathers ids and what is linked."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "src"):
                self.links.add(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_from_outside() -> None:
    html = files()[PAGE].body.decode()
    tags = Tags()
    tags.feed(html)
    assert tags.open == []
    assert len(tags.ids) == len(set(tags.ids))
    outward = {link for link in tags.links if not link.startswith(("#", "/web/"))}
    assert outward == {"/", "openapi.json"}
    assert b"innerHTML" not in files()["api/api.js"].body


def test_every_field_that_is_asked_for_is_explained() -> None:
    found = document()
    for name, schema in found["components"]["schemas"].items():
        for field, one in schema.get("properties", {}).items():
            assert one.get("description"), f"{name}.{field}"
    for methods in found["paths"].values():
        for operation in methods.values():
            for one in operation.get("parameters", []):
                if one["in"] != "path":
                    assert one.get("description"), f"{operation['operationId']}: {one['name']}"


def test_every_operation_stands_under_a_heading_of_the_page() -> None:
    headings = {one["name"] for one in document()["tags"]}
    assert {endpoint.tag for endpoint in ENDPOINTS} == headings


def test_the_document_explains_every_error() -> None:
    names = {one["name"] for one in document()["x-errors"]}
    expected = {"NotFound", "LeaseLost", "Denied", "OutcomeUnknown", "TooSlow", "InternalError"}
    assert expected <= names
    assert all(one["description"] for one in document()["x-errors"])


@served
async def test_the_page_is_served_with_a_policy_that_lets_in_only_its_own(rest: Rest) -> None:
    answer = await rest.get("/docs")
    assert answer.headers["content-type"].startswith("text/html")
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "connect-src 'self'" in policy
    assert "unsafe" not in policy


def test_the_page_opens_without_a_token_and_the_document_does_not() -> None:
    async def test() -> None:
        async with guarded(extra=routes) as at:
            token = at.token("log:read:other")
            answer = await at.ask("GET", "/docs")
            assert answer.status_code == 200
            assert answer.content == files()[PAGE].body
            assert (await at.ask("GET", "/openapi.json")).status_code == 401
            assert (await at.ask("GET", "/docs", bearer="ms_no_good")).status_code == 401
            allowed = await at.ask("GET", "/openapi.json", bearer=token)
            assert allowed.status_code == 200

    in_loop(test)


# Examples.

LATER = {"deleteLog", "deleteMetadata", "deleteCursor", "deleteQueue", "truncateLog", "purgeQueue"}
LATER |= {"revokeToken"}
"""What would take away what other examples need."""


def request_of(endpoint: Any) -> dict[str, Any]:
    path = endpoint.path
    for name, value in examples.NAMES.items():
        path = path.replace(f"{{{name}}}", value)
    found = {"method": endpoint.method, "url": path, "params": examples.QUERIES.get(endpoint.name)}
    if endpoint.body is not None:
        found["json"] = examples.BODIES[endpoint.name]
    return found


EVERYTHING = Principal("all", parse_permissions(["*:admin", "store:admin"]))


def test_every_example_is_one_that_works() -> None:
    async def test() -> None:
        async with serving(principal=EVERYTHING) as rest:
            await _ask_every_example(rest)

    in_loop(test)


async def _ask_every_example(rest: Rest) -> None:
    first = ("createLog", "specifyQueue", "openCursor", "appendRecords", "putMessages")
    order = sorted(ENDPOINTS, key=lambda one: (one.name in LATER, one.name not in first))
    order.sort(key=lambda one: -len(one.path) if one.name.startswith("delete") else -999)
    claim = examples.NAMES["claim_id"]
    for endpoint in order:
        if endpoint.tag == "claims" and "claims" in examples.BODIES[endpoint.name]:
            await rest.post("/queues/invoices/messages", json={"value": 1})
            (message,) = (await rest.post("/queues/invoices/claims", json={})).json()["messages"]
            asked = request_of(endpoint)
            asked["json"] = {**asked["json"], "claims": [message["claim"]]}
        else:
            asked = request_of(endpoint)
        if endpoint.name in ("takeRecords", "claimMessages"):
            asked["json"] = {**asked["json"], "wait": 0}
        if endpoint.name == "replaceMessage":
            await rest.post("/queues/invoices/messages", json={"value": 1})
            (message,) = (await rest.post("/queues/invoices/claims", json={})).json()["messages"]
            await rest.post("/queues/invoices/fail", json={"claims": message["claim"]})
            asked["url"] = asked["url"].replace(claim, message["claim_id"])
        elif "claim_id" in endpoint.path:
            await rest.post("/queues/invoices/messages", json={"value": 1})
            (message,) = (await rest.get("/queues/invoices/messages?limit=1")).json()["messages"]
            asked["url"] = asked["url"].replace(claim, str(message["claim_id"]))
        if "{job}" in endpoint.path:
            asked["url"] = asked["url"].replace(examples.NAMES["job"], await _ended_job(rest))
        if endpoint.name == "mergeFork":
            fork = (await rest.post("/logs/orders/fork", json={})).json()["fork"]
            asked["url"] = asked["url"].replace("orders", fork)
        if endpoint.tag == "cluster":
            continue  # this server is no node; tests/unit/server/cluster/ asks some
        if endpoint.name == "setPresence":
            continue  # it needs an open connection; test_presence_state.py has some
        if endpoint.name == "adoptBlocks":
            continue  # its body is not JSON; tests/unit/server/test_rest_replica.py sends some
        answer = await rest.request(**asked)
        assert answer.status_code < 300, (endpoint.name, answer.text)


async def _ended_job(rest: Rest) -> str:
    """Put a job that fails at once, and return its id."""
    await rest.put("/queues/jobs")
    body = {"value": {}, "headers": {"task": "t"}}
    id = (await rest.post("/queues/jobs/messages", json=body)).json()["id"]
    messages = (await rest.post("/queues/jobs/claims", json={"n": 10})).json()["messages"]
    claims = [message["claim"] for message in messages]  # also of a job that was tried again
    await rest.post("/queues/jobs/fail", json={"claims": claims, "reason": "no"})
    return f"jobs-{id}"


def test_there_is_an_example_of_every_body() -> None:
    with_body = {endpoint.name for endpoint in ENDPOINTS if endpoint.body is not None}
    assert with_body == set(examples.BODIES)
    for name, body in examples.BODIES.items():
        (endpoint,) = (one for one in ENDPOINTS if one.name == name)
        assert msgspec.json.decode(msgspec.json.encode(body), type=endpoint.body) is not None


def test_the_claim_in_the_examples_is_one_that_could_be() -> None:
    assert re.fullmatch(r"[0-9]{19}", examples.NAMES["claim_id"])


def test_every_duration_is_in_seconds() -> None:
    found = document()
    named = {
        name
        for one in found["components"]["schemas"].values()
        for name in one.get("properties", ())
    }
    for methods in found["paths"].values():
        for operation in methods.values():
            named |= {one["name"] for one in operation.get("parameters", ())}
    assert {name for name in named if name.endswith("_ms")} == {
        "start_ms",
        "commit_ms",
    }  # a time, and for charts
