"""What an operator makes and changes on the dashboard: queues, logs, retention, test messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream.log.commands import CreateLog
from millstream.server.serving import Serving
from millstream.threads.database import Millstream
from tests.browser.boarding import cells, go, says, serving, token, watch

pytestmark = [pytest.mark.browser, pytest.mark.requires("browser")]

LARGE = 2**63 - 1


@pytest.fixture
def ms(server: Serving) -> Iterator[Millstream]:
    with millstream.open(server.url) as opened:
        yield opened


def press(page: Any, name: str) -> Any:
    """Press a button of the page; answers the dialog that opens."""
    page.get_by_role("button", name=name).click()
    dialog = page.locator("dialog")
    dialog.wait_for()
    return dialog


def spec_of(ms: Millstream, name: str) -> Any:
    info = ms.queue(name).info()
    assert info is not None
    return info.spec


def test_a_queue_is_made_and_altered(page: Any, server: Serving, ms: Millstream) -> None:
    complaints = watch(page)
    go(page, server, "queues")
    dialog = press(page, "New queue…")
    dialog.get_by_label("Name", exact=True).fill("invoices")
    dialog.get_by_label("Takes records of these logs").fill("orders, refunds")
    dialog.get_by_label("Only records whose headers match").fill("amount > 100")
    dialog.get_by_label("Lease", exact=True).fill("soon")
    dialog.get_by_role("button", name="Create").click()
    says(
        dialog.locator("[role=alert]"),
        "Check it Lease: “soon” is not a duration such as 30s, 15m, 12h or 7d.",
    )
    dialog.get_by_label("Lease", exact=True).fill("2m")
    dialog.get_by_label("Wait before a retry").fill("1s,10s,1m")
    dialog.get_by_text("More settings").click()
    dialog.get_by_label("Most claims per second").fill("2.5")
    dialog.get_by_role("button", name="Create").click()
    page.wait_for_selector("h1:text-is('invoices')")
    spec = spec_of(ms, "invoices")
    assert (spec.sources, spec.filter) == (("orders", "refunds"), "amount > 100")
    assert (spec.lease, spec.backoff.waits, spec.rate) == (120, (1, 10, 60), 2.5)
    assert (spec.max_attempts, spec.done_retention) == (5, 7 * 86_400)

    dialog = press(page, "Settings…")
    assert dialog.get_by_label("Lease", exact=True).input_value() == "2m"
    assert dialog.get_by_label("Wait before a retry").input_value() == "1s,10s,1m"
    dialog.get_by_role("button", name="Save").click()
    says(dialog.locator("[role=alert]"), "Check it Nothing was changed.")
    dialog.get_by_label("Attempts until a message fails").fill("9")
    dialog.get_by_label("Description").fill("Sends invoices")
    dialog.get_by_role("button", name="Save").click()
    dialog.get_by_text("The queue has 2 new settings.").wait_for()
    dialog.get_by_role("button", name="Close").click()
    says(page.locator(".lead"), "Sends invoices")
    spec = spec_of(ms, "invoices")
    assert (spec.max_attempts, spec.lease, spec.rate) == (9, 120, 2.5)
    assert complaints == []


def test_a_queue_that_exists_is_not_made_again(page: Any, server: Serving, ms: Millstream) -> None:
    ms.create_queue("taken", max_attempts=17)
    go(page, server, "queues")
    dialog = press(page, "New queue…")
    dialog.get_by_label("Name", exact=True).fill("taken")
    dialog.get_by_role("button", name="Create").click()
    dialog.locator("[role=alert]", has_text="There is a queue “taken” already").wait_for()
    assert spec_of(ms, "taken").max_attempts == 17


def test_what_the_server_refuses_is_told_in_its_words(
    page: Any, server: Serving, ms: Millstream
) -> None:
    go(page, server, "queues")
    dialog = press(page, "New queue…")
    dialog.get_by_label("Name", exact=True).fill("refused")
    dialog.get_by_label("Only records whose headers match").fill("amount >")
    dialog.get_by_role("button", name="Create").click()
    dialog.locator("[role=alert]", has_text="InvalidFilter").wait_for()
    assert "refused" not in [info.name for info in ms.queues()]


def test_a_test_message_is_put_as_it_is_typed(page: Any, server: Serving, ms: Millstream) -> None:
    queue = ms.create_queue("tried", priority_by="urgency", group_by="customer")
    go(page, server, "queues", "tried")
    dialog = press(page, "Put a message…")
    dialog.get_by_label("Value").fill(f'{{"n": {LARGE}}}')
    dialog.get_by_label("Key").fill("k1")
    dialog.get_by_label("Headers, as JSON").fill("[1]")
    dialog.get_by_role("button", name="Put", exact=True).click()
    dialog.locator("[role=alert]", has_text="Headers are a JSON object").wait_for()
    dialog.get_by_label("Headers, as JSON").fill('{"kind": "card"}')
    dialog.get_by_label("Priority").fill("7")
    dialog.get_by_label("Group").fill("ada")
    dialog.get_by_role("button", name="Put", exact=True).click()
    dialog.get_by_text("is stored, and can be claimed.").wait_for()
    dialog.get_by_label("Value").fill("only text")
    dialog.get_by_text("Stored as text: it is not JSON.").wait_for()
    dialog.get_by_label("Delay").fill("1h")
    dialog.get_by_role("button", name="Put", exact=True).click()
    dialog.get_by_text("is stored, and waits for 1h.").wait_for()
    dialog.get_by_role("button", name="Close").click()
    (message,) = queue.claim(5)  # the other message waits for its time
    assert message.value == f'{{"n": {LARGE}}}'.encode()  # digit for digit
    assert (message.key, message.json()) == (b"k1", {"n": LARGE})
    headers = message.headers
    assert (headers["kind"], headers["urgency"], headers["customer"]) == ("card", 7, "ada")


def test_a_log_is_made_with_retention_and_the_retention_is_changed(
    page: Any, server: Serving, ms: Millstream
) -> None:
    go(page, server, "logs")
    dialog = press(page, "New log…")
    dialog.get_by_label("Name", exact=True).fill("events")
    dialog.get_by_label("Delete records older than").fill("7d")
    dialog.get_by_label("Keep at most this size").fill("10 GiB")
    dialog.get_by_role("button", name="Create").click()
    page.wait_for_selector("h1:text-is('events')")
    page.wait_for_selector("text=Keeps 7 d, 10 GiB.")
    rules = ms.log("events").retention()
    assert (rules.age_ms, rules.bytes, rules.count) == (7 * 86_400_000, 10 * 2**30, None)

    dialog = press(page, "Retention…")
    assert dialog.get_by_label("Delete records older than").input_value() == "7d"
    dialog.get_by_label("Delete records older than").fill("")
    dialog.get_by_label("Keep at most this many records").fill("1000")
    dialog.get_by_label("Delete records that every cursor and queue has passed").check()
    dialog.get_by_role("button", name="Save").click()
    dialog.get_by_text("The log has the new rules.").wait_for()
    dialog.get_by_role("button", name="Close").click()
    page.wait_for_selector("text=Keeps 10 GiB, 1,000 records, until consumed.")
    rules = ms.log("events").retention()
    assert (rules.age_ms, rules.count, rules.consumed) == (None, 1000, True)


def test_a_log_with_partitions_has_the_retention_in_each_of_them(
    page: Any, server: Serving, ms: Millstream
) -> None:
    go(page, server, "logs")
    dialog = press(page, "New log…")
    dialog.get_by_label("Name", exact=True).fill("spread")
    dialog.get_by_label("Partitions").fill("3")
    dialog.get_by_label("Keep at most this many records").fill("50")
    dialog.get_by_role("button", name="Create").click()
    page.wait_for_selector("text=Each partition keeps 50 records.")
    spread = ms.partitioned_log("spread")
    assert [spread.partition(n).retention().count for n in range(3)] == [50, 50, 50]


def test_a_record_is_appended_and_shown(page: Any, server: Serving, ms: Millstream) -> None:
    ms.log("written").append("first")
    go(page, server, "logs", "written")
    dialog = press(page, "Append a record…")
    dialog.get_by_label("Value").fill('{"second": true}')
    dialog.get_by_role("button", name="Append", exact=True).click()
    dialog.get_by_text("The record is stored at offset 1.").wait_for()
    dialog.get_by_role("button", name="Close").click()
    says(page.locator("td.value").first, '{"second":true}')
    assert [record.value for record in ms.log("written").read()] == [b"first", b'{"second": true}']


def test_a_token_that_may_only_put_gets_no_other_control(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "puts.db"
    context = browser.new_context()
    page = context.new_page()
    with millstream.open(path) as ms:
        ms.create_queue("jobs")
        ms.log("orders").append("x")
    text = token(path, "queue:read", "queue:put:jobs", "log:read", name="puts")
    with serving(path, auth="on") as server:
        go(page, server, "queues", "jobs", text=text)
        assert page.get_by_role("button", name="Put a message…").is_enabled()
        refused = page.locator("main [data-refused]").all_inner_texts()
        assert refused == ["Settings…", "Pause", "Purge…"]
        go(page, server, "queues")
        assert page.get_by_role("button", name="New queue…").is_disabled()
        go(page, server, "logs")
        button = page.get_by_role("button", name="New log…")
        why = "This needs the permission log:write, which the token “puts” does not have."
        assert (button.is_disabled(), button.get_attribute("title")) == (True, why)
        go(page, server, "logs", "orders")
        refused = page.locator("main [data-refused]").all_inner_texts()
        assert refused == ["Append a record…", "Retention…", "Truncate…"]
    context.close()


def test_logs_of_queues_and_rooms_are_apart_from_logs_of_users(
    browser: Any, tmp_path: Path
) -> None:
    def fill(ms: Millstream) -> None:
        ms.log("orders").append("x")
        ms.create_queue("mail").put("x")
        ms.room("hall").send("note", 1)
        ms.session.execute(CreateLog("empty"))

    context = browser.new_context()
    page = context.new_page()
    with serving(tmp_path / "grouped.db", fill) as server:
        go(page, server, "logs")
        assert cells(page, "main > .card td:first-child") == ["empty", "orders"]
        assert cells(page, "tr:has-text('empty') td[data-label='last record']") == ["none"]
        says(page.locator("details.internal summary"), "2 logs of queues, rooms and the store")
        assert not page.get_by_role("link", name="queue:mail").is_visible()
        page.locator("details.internal summary").click()
        assert cells(page, "details.internal td:first-child") == [
            "queue:mail messages put into the queue mail",
            "room:hall messages of the room hall",
        ]
        page.keyboard.press("/")
        page.keyboard.type("mail")
        page.get_by_role("link", name="queue:mail").wait_for()
        assert page.locator("main > .card").count() == 0
    context.close()


def test_a_queue_opens_on_the_first_list_with_messages(
    page: Any, server: Serving, ms: Millstream
) -> None:
    queue = ms.create_queue("opened")
    shown = page.locator(".tabs [aria-current=page]")
    go(page, server, "queues", "opened")
    says(shown, "Settings")
    queue.put_many(["a", "b"])
    says(shown, "Waiting 2")
    queue.ack(queue.claim(1))
    says(shown, "Waiting 1")  # the list that is shown stays
    queue.pop(1)
    go(page, server, "queues")
    go(page, server, "queues", "opened")
    says(shown, "Done 2")
