"""The examples run, and do what they say."""

from __future__ import annotations

import asyncio
import runpy
from pathlib import Path
from typing import Any

import httpx
import pytest

HANGS_S = 120
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def load(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="example")


def test_the_pipeline_invoices_every_order_once_however_often_it_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main = load("pipeline")["main"]
    for _ in range(2):
        main(str(tmp_path / "p.db"))
    assert capsys.readouterr().out == "5 invoices for 5 orders\n" * 2


def test_the_follower_prints_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    example = load("follow")
    example["write"](3)
    capsys.readouterr()
    example["follow"](0.01)
    assert capsys.readouterr().out.splitlines() == [f"{n} {{'tick': {n}}}" for n in range(3)]


def test_devices_feed_one_queue_and_push_only_what_is_new(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main = load("devices")["main"]
    for _ in range(2):
        main(str(tmp_path / "fleet"), 30)
    line = "30 devices pushed 90 readings, the queue handled 90\n"
    assert capsys.readouterr().out == line * 2


def test_the_worker_finishes_retries_and_rejects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load("worker")["main"](str(tmp_path / "w.db"))
    *_, summary, failed = capsys.readouterr().out.splitlines()
    assert summary == "3 done, 1 tried again, 1 failed"
    assert failed == "failed: notes.txt because notes.txt is no picture"


def test_programs_share_a_queue_through_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from millstream.server.serving import running
    from millstream.server.settings import Settings

    main = load("served")["main"]
    with running(tmp_path / "s.db", Settings(port=0)) as server:
        monkeypatch.setenv("MILLSTREAM_URL", server.url)
        main(["put", "3"])
        main(["work", "--drain"])
    assert capsys.readouterr().out.splitlines() == [
        "put 3",
        *(f"handled {n}" for n in range(3)),
        "done 3",
    ]


def test_the_web_shop_sends_a_mail_for_every_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WEBSHOP_STORE", str(tmp_path / "shop.db"))
    app = load("webshop")["app"]
    order = {"customer": "alice", "item": "tea"}

    async def buy() -> None:
        transport = httpx.ASGITransport(app)
        async with (
            asyncio.timeout(HANGS_S),
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://shop") as client,
        ):
            number = (await client.post("/orders", json=order)).json()["order"]
            while not (found := (await client.get("/orders")).json())[0]["mailed"]:
                pass  # the worker's commit is on its way
            assert found == [{"order": number, "mailed": 1, **order}]

    asyncio.run(buy())
    assert capsys.readouterr().out == "mail to alice: your tea is on its way\n"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.name)
def test_every_example_is_known_here(path: Path) -> None:
    known = {"devices", "follow", "pipeline", "served", "webshop", "worker"}
    jobs = {"jobs_django", "jobs_flask", "jobs_starlette", "outbox", "outbox_django"}
    assert path.stem in known | jobs  # tests/integration/test_job_examples.py runs the latter
