"""The dashboard, in a browser: it loads from this server alone, lives, and shows logs as they are."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

import millstream
from millstream.server.serving import Serving
from millstream.threads.database import Millstream
from tests.browser.boarding import cells, figure, go, says, serving, settled, watch

pytestmark = [pytest.mark.browser, pytest.mark.requires("browser")]

PAGES = ("", "logs", "queues", "rooms", "replicas", "clients", "cluster", "health", "tokens")
LARGE = 2**63 - 1


def first_is(page: Any, offset: str) -> None:
    """Wait until a record is the first that is shown."""
    says(page.locator("table.records td[data-label=offset]").first, offset)


@pytest.fixture
def ms(server: Serving) -> Iterator[Millstream]:
    with millstream.open(server.url) as opened:
        yield opened


def test_every_page_loads_without_a_complaint_and_asks_nobody_else(
    page: Any, server: Serving, ms: Millstream
) -> None:
    complaints, asked, refused = watch(page), set[str](), list[str]()
    page.on("request", lambda request: asked.add(request.url))
    page.on("response", lambda answer: refused.append(answer.url) if answer.status >= 400 else None)
    ms.log("loads").append("x")
    ms.create_queue("loads")
    go(page, server)
    for link in PAGES:
        page.locator(f"nav a[href='#/{link}']").click()
        page.wait_for_selector(f"nav a[href='#/{link}'][aria-current=page]")
        settled(page)
    for one in ("logs", "queues"):
        go(page, server, one, "loads")
    assert (complaints, refused) == ([], [])
    assert {url for url in asked if not url.startswith(f"{server.url}/")} == set()
    policy = page.request.get(server.url).headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_a_page_that_there_is_not_says_so(page: Any, server: Serving) -> None:
    go(page, server, "nowhere")
    assert "no such page" in page.locator("h1").inner_text()
    go(page, server, "logs", "missing")
    page.wait_for_selector("[role=alert]")
    assert "there is no log 'missing'" in page.locator("[role=alert]").first.inner_text()


def test_figures_and_charts_move_as_messages_come(
    page: Any, server: Serving, ms: Millstream
) -> None:
    queue = ms.create_queue("moving")
    go(page, server)
    page.wait_for_selector(".badge.good:has-text('live')")
    assert page.locator(".charts canvas").count() == 4
    queue.put_many([b"x"] * 500)
    figures = page.locator(".figure", has_text="waiting, delayed or in flight")
    says(figures.locator("b"), "500")
    page.wait_for_selector("tr:has-text('moving') td[data-label=waiting]:has-text('500')")
    assert page.locator(".chart .legend b").first.inner_text().endswith("/s")


def test_the_system_says_light_or_dark_and_the_button_changes_it(
    browser: Any, server: Serving
) -> None:
    context = browser.new_context(color_scheme="dark")
    page = context.new_page()
    go(page, server)

    def brightness() -> int:
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in colour.removeprefix("rgb(").rstrip(")").split(","))

    assert brightness() < 150
    page.locator("[data-theme-toggle]").click()
    assert brightness() > 600
    context.close()


# Logs.


@pytest.fixture
def orders(ms: Millstream) -> Iterator[str]:
    log = ms.log("orders")
    for n in range(120):
        log.append({"n": n, "large": LARGE}, key=f"k{n % 3}", headers={"amount": n, "kind": "card"})
    yield "orders"
    log.delete()


def test_logs_are_listed_and_found(page: Any, server: Serving, ms: Millstream, orders: str) -> None:
    ms.log("payments").append("x")
    go(page, server, "logs")
    assert {"orders", "payments"} <= set(cells(page, "tbody td:first-child"))
    assert cells(page, "tr:has-text('orders') td[data-label=records]") == ["120"]
    page.keyboard.press("/")
    page.keyboard.type("order")
    assert cells(page, "tbody td:first-child") == ["orders"]
    page.get_by_role("link", name="orders", exact=True).click()
    page.wait_for_selector("h1:has-text('orders')")
    page.wait_for_selector(".figure:has-text('records')")
    assert figure(page, "records") == "120"


def test_a_log_with_partitions_is_one_line_and_its_page_has_a_table_of_them(
    page: Any, server: Serving, ms: Millstream
) -> None:
    complaints = watch(page)
    parted = ms.log("parted", partitions=3)
    parted.append_many([{"n": n} for n in range(30)], keys=[f"k{n}" for n in range(30)])
    go(page, server, "logs")
    assert cells(page, "tr:has-text('parted') td:first-child") == ["parted (3 partitions)"]
    assert cells(page, "tr:has-text('parted') td[data-label=records]") == ["30"]
    page.get_by_role("link", name="parted", exact=True).click()
    page.wait_for_selector("h1:has-text('parted')")
    page.wait_for_selector("text=partition 2")
    assert (figure(page, "records"), figure(page, "partitions")) == ("30", "3")
    counts = [str(len(parted.partition(number))) for number in range(3)]
    assert cells(page, "td[data-label='next offset']") == counts
    assert page.get_by_role("button", name="Truncate…").count() == 0
    page.get_by_role("link", name="partition 2").click()
    first_is(page, str(int(counts[2]) - 1))
    page.get_by_role("link", name="parted", exact=True).click()
    page.wait_for_selector("section[aria-label=Partitions]")
    assert complaints == []
    parted.delete()


def test_a_log_is_browsed_from_its_end_by_offset_and_by_time(
    page: Any, server: Serving, ms: Millstream, orders: str
) -> None:
    offsets = "table.records td[data-label=offset]"
    go(page, server, "logs", orders)
    assert cells(page, offsets)[:3] == ["119", "118", "117"]
    page.get_by_role("button", name="Next", exact=True).click()
    first_is(page, "69")
    page.get_by_role("button", name="Back", exact=True).click()
    first_is(page, "119")
    page.get_by_label("From offset").fill("10")
    page.get_by_label("Which come first").select_option("oldest")
    page.get_by_role("button", name="Show", exact=True).click()
    first_is(page, "10")
    assert cells(page, offsets)[:3] == ["10", "11", "12"]
    assert "from=10" in page.url
    page.get_by_role("button", name="Clear").click()
    first_is(page, "119")
    first = ms.log(orders).first()
    assert first is not None
    moment = datetime.fromtimestamp(first.appended / 1000 - 3600).strftime("%Y-%m-%dT%H:%M:%S")
    page.get_by_label("From time").fill(moment)
    page.get_by_role("button", name="Show", exact=True).click()
    page.wait_for_selector("text=No record matches.")
    page.get_by_label("Which come first").select_option("oldest")
    page.get_by_role("button", name="Show", exact=True).click()
    first_is(page, "0")


def test_records_are_searched_by_key_and_by_headers(
    page: Any, server: Serving, orders: str
) -> None:
    offsets = "table.records td[data-label=offset]"
    go(page, server, "logs", orders)
    page.get_by_label("Key").fill("k1")
    page.get_by_label("Headers match").fill("amount >= 100 AND kind = 'card'")
    page.keyboard.press("Enter")
    first_is(page, "118")
    assert cells(page, offsets) == ["118", "115", "112", "109", "106", "103", "100"]
    page.reload()  # the address holds the search
    page.wait_for_selector("table.records")
    assert cells(page, offsets)[0] == "118"
    page.get_by_label("Headers match").fill("amount >")
    page.keyboard.press("Enter")
    page.wait_for_selector("[role=alert]:has-text('InvalidFilter')")
    assert "line 1, column" in page.locator("[role=alert]").inner_text()


def test_a_value_is_shown_as_json_text_and_hex(
    page: Any, server: Serving, ms: Millstream, orders: str
) -> None:
    go(page, server, "logs", orders)
    page.wait_for_selector("table.records")
    assert cells(page, "td.value")[0] == f'{{"n":119,"large":{LARGE}}}'  # digit for digit
    toggle = page.get_by_role("button", name="Record 119")
    toggle.focus()
    page.keyboard.press("Enter")
    value = page.locator(".payload pre")
    value.wait_for()
    assert value.inner_text() == f'{{\n  "n": 119,\n  "large": {LARGE}\n}}'  # digit for digit
    page.get_by_role("button", name="Text", exact=True).click()
    assert value.inner_text() == f'{{"n":119,"large":{LARGE}}}'
    page.get_by_role("button", name="Hex", exact=True).click()
    assert value.inner_text().startswith("000000  7b 22 6e 22 3a 31 31 39")
    assert '{"n":119,' in value.inner_text()
    ms.log("bytes").append(b"\x00\xff\x00<b>")
    go(page, server, "logs", "bytes")
    page.get_by_role("button", name="Record 0").click()
    value.wait_for()
    assert value.inner_text().startswith("000000  00 ff 00 3c 62 3e")
    assert page.get_by_role("button", name="JSON", exact=True).is_disabled()
    assert page.get_by_role("button", name="Text", exact=True).is_disabled()


def test_records_of_a_log_with_a_schema_are_shown_as_fields(
    page: Any, server: Serving, ms: Millstream
) -> None:
    complaints = watch(page)
    typed = ms.log("typed")
    typed.append("from before the schema")
    typed.set_schema(
        {
            "type": "object",
            "properties": {"id": {"type": "integer"}, "note": {"type": "string"}},
            "required": ["id"],
        }
    )
    typed.append_many([{"id": LARGE, "note": "<b>late</b>"}, {"id": 2, "more": True}])
    go(page, server, "logs", "typed")
    page.wait_for_selector("td[data-label=note]")
    assert cells(page, "table.records th")[-2:] == ["id", "note"]
    assert cells(page, "td[data-label=id]") == ["2", str(LARGE)]  # digit for digit
    assert cells(page, "td[data-label=note]") == ["", "<b>late</b>"]
    assert cells(page, "td[data-label=value]") == ["from before the schema"]
    page.get_by_text("Schema: 2 fields, version 1").click()
    assert cells(page, "details.schema td[data-label=type]") == ["integer", "string"]
    assert cells(page, "details.schema td[data-label=required]") == ["yes", "no"]
    assert complaints == []
    typed.delete()


def test_a_log_is_followed_as_it_grows_until_a_record_is_opened(
    page: Any, server: Serving, ms: Millstream, orders: str
) -> None:
    go(page, server, "logs", orders)
    page.wait_for_selector("table.records")
    ms.log(orders).append("the newest")
    page.wait_for_selector("table.records td.value:has-text('the newest')")
    page.get_by_role("button", name="Record 120").click()
    assert not page.get_by_label("Follow the log").is_checked()


def test_a_log_is_truncated_once_its_name_is_typed(
    page: Any, server: Serving, ms: Millstream, orders: str
) -> None:
    go(page, server, "logs", orders)
    page.get_by_role("button", name="Truncate…").click()
    dialog = page.locator("dialog")
    dialog.get_by_label("Forget the records before offset").fill("100")
    button = dialog.get_by_role("button", name="Forget 100 records")
    assert button.is_disabled()
    dialog.get_by_label("The name, to confirm").fill("order")
    assert button.is_disabled()
    page.keyboard.press("Enter")
    assert ms.log(orders).start_offset() == 0
    dialog.get_by_label("The name, to confirm").fill("orders")
    button.click()
    dialog.get_by_text("100 records went.").wait_for()
    assert ms.log(orders).start_offset() == 100
    dialog.get_by_role("button", name="Close").click()
    says(page.locator(".figure b").first, "20")


def test_cursors_are_shown_with_how_far_they_are_behind(
    page: Any, server: Serving, ms: Millstream, orders: str
) -> None:
    cursor = ms.log(orders).cursor("reports")
    cursor.ack(cursor.take(20))
    go(page, server, "logs", orders)
    page.wait_for_selector("tr:has-text('reports')")
    assert "100 records" in cells(page, "tr:has-text('reports') td")


# Health, replicas and forks.


def test_a_finding_says_what_to_do(browser: Any, tmp_path: Any) -> None:
    def fill(ms: Millstream) -> None:
        ms.create_queue("slow").put(b"x")

    context = browser.new_context()
    with serving(tmp_path / "h.db", fill, queue_age_s_max=0.001) as server:
        page = context.new_page()
        go(page, server, "health")
        check = page.locator("li.check.warn")
        check.wait_for()
        assert "'slow' has a message that has waited for" in check.inner_text()
        assert "What to do. Start more workers" in check.inner_text()
        page.wait_for_selector("header .badge.warn:has-text('warning')")
        names = cells(page, "li.check h3")
        assert names[0] == "Messages are worked on in time"  # the worst first
        assert "Free space on the disk" in names
    context.close()


def test_forks_are_listed_and_merged_and_copies_name_their_owner(
    page: Any, server: Serving, ms: Millstream
) -> None:
    ms.log("main").append("a")
    ms.log("main").fork("trial").append("b")
    go(page, server, "replicas")
    row = page.locator("tr:has(td:first-child:has-text('trial'))").last
    assert "main" in row.inner_text()
    row.get_by_role("button", name="Merge…").click()
    dialog = page.locator("dialog")
    dialog.get_by_role("button", name="Merge", exact=True).click()
    dialog.get_by_text("main has taken over 1 record and ends at 2.").wait_for()
    assert len(ms.log("main")) == 2
    dialog.get_by_role("button", name="Close").click()
    assert page.get_by_text("every log here belongs to this store").count() == 1


def test_copies_of_other_stores_are_listed_and_taken_over(browser: Any, tmp_path: Any) -> None:
    with millstream.open(tmp_path / "depot.db") as depot:
        depot.log("parcels").append_many(["a", "b"])
        depot_id = depot.log("parcels").owner().store

    def fill(ms: Millstream) -> None:
        ms.log("own").append("x")
        with millstream.open(tmp_path / "depot.db") as peer:
            ms.sync(peer)

    context = browser.new_context()
    page = context.new_page()
    with serving(tmp_path / "shop.db", fill) as server:
        go(page, server, "replicas")
        assert cells(page, "tbody td:first-child") == ["parcels"]
        assert cells(page, "td[data-label=owner]") == [depot_id]
        page.get_by_role("button", name="Owner…").click()
        dialog = page.locator("dialog")
        dialog.get_by_text("Running hash at offset 2").wait_for()
        assert "has the same records" in dialog.inner_text()
        dialog.get_by_role("button", name="Take over").click()
        dialog.get_by_text("This store appends from now on.").wait_for()
        dialog.get_by_role("button", name="Close").click()
        page.get_by_text("every log here belongs to this store").wait_for()
    context.close()
