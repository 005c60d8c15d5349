"""The examples of jobs in web frameworks, and of the outbox on PostgreSQL, do what they say."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import httpx
import pytest

import millstream

pytestmark = pytest.mark.timeout(120)

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
HANGS_S = 100


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHOP_STORE", str(tmp_path / "shop.db"))
    monkeypatch.syspath_prepend(EXAMPLES)
    return tmp_path / "shop.db"


def imported(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import an example anew, with the store of this test."""
    monkeypatch.delitem(sys.modules, name, raising=False)
    module = import_module(name)
    monkeypatch.setitem(sys.modules, name, module)
    return module


def run(*arguments: str, **environment: str) -> str:
    """Run an example as a program."""
    source = str(Path(millstream.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{EXAMPLES}", **environment},
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def order_thumbnail(example: ModuleType, *, wait: bool) -> httpx.Response:
    """Order a thumbnail, and ask for its result if a worker runs in the lifespan."""
    app = example.app
    async with (
        asyncio.timeout(HANGS_S),
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client,
    ):
        ordered = await client.post("/thumbnails", json={"picture": "cat.png"})
        assert ordered.status_code == 202
        return await client.get(f"/thumbnails/{ordered.json()['job']}") if wait else ordered


def test_starlette_runs_a_worker_in_its_lifespan(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = imported("jobs_starlette", monkeypatch)
    shown = asyncio.run(order_thumbnail(example, wait=True))
    assert shown.json() == {"result": "cat.png@128"}


def test_a_process_runs_the_jobs_of_starlette(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_WORKER", "process")
    example = imported("jobs_starlette", monkeypatch)
    job = asyncio.run(order_thumbnail(example, wait=False)).json()["job"]
    run(
        "-c",
        "import asyncio, jobs_starlette; asyncio.run(jobs_starlette.work(drain=True))",
        SHOP_STORE=str(store),
    )
    with millstream.Jobs(store) as jobs:
        assert jobs.get(job).result(timeout=0) == "cat.png@128"


def test_flask_puts_jobs_and_shows_their_results(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("flask")
    example = imported("jobs_flask", monkeypatch)
    with example.jobs:
        client = example.app.test_client()
        job = client.post("/reports", json={"customer": "ada"}).get_json()["job"]
        assert client.get(f"/reports/{job}").get_json() == {"state": "waiting", "result": None}
        example.jobs.worker().run(drain=True)
        shown = client.get(f"/reports/{job}").get_json()
        assert shown == {"state": "done", "result": {"customer": "ada", "orders": 7}}


def test_django_enqueues_in_its_transaction(store: Path) -> None:
    pytest.importorskip("django")
    program, place = str(EXAMPLES / "jobs_django.py"), str(store)
    run(program, "migrate", "--verbosity", "0", SHOP_STORE=place)
    id = run(program, "order", "grace", SHOP_STORE=place).strip()
    with millstream.open(store) as ms:
        from millstream.testing import Probe

        Probe(ms).until(lambda: not ms.queue("tasks.default").info().is_empty)
    run(program, "millstream_worker", "--drain", SHOP_STORE=place)
    assert run(program, "result", id, SHOP_STORE=place) == "welcome, grace\n"


# The outbox.


@pytest.fixture(scope="module")
def postgres() -> Iterator[Path]:
    """Start PostgreSQL on a socket in a folder, and return the folder. It refuses to run as root."""
    pytest.importorskip("psycopg")
    server = shutil.which("initdb") or "/usr/lib/postgresql/15/bin/initdb"
    bin = Path(server).resolve().parent
    user = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    if not (bin / "initdb").exists() or user not in {entry.pw_name for entry in pwd.getpwall()}:
        pytest.skip("PostgreSQL is not installed")
    folder = Path(tempfile.mkdtemp(prefix="ms-pg-"))
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, user)
        identity = {"user": user} if os.geteuid() == 0 else {}
        subprocess.run(
            [bin / "initdb", "-D", folder / "data", "-U", "postgres", "--no-sync", "-A", "trust"],
            check=True,
            capture_output=True,
            cwd=folder,
            **identity,  # type: ignore[call-overload]
        )
        options = f"-k {folder} -c listen_addresses= -c fsync=off"
        control = [bin / "pg_ctl", "-D", folder / "data", "-w", "-l", folder / "log"]
        subprocess.run(
            [*control, "-o", options, "start"],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=folder,
            **identity,  # type: ignore[call-overload]
        )
        try:
            yield folder
        finally:
            subprocess.run(
                [*control, "-m", "immediate", "stop"],
                check=True,
                stdout=subprocess.DEVNULL,
                cwd=folder,
                **identity,  # type: ignore[call-overload]
            )
    finally:
        shutil.rmtree(folder)


class Killed(Exception):
    """Stands for the death of a relay."""


def test_a_relay_that_dies_after_its_put_puts_no_job_twice(
    postgres: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sqlalchemy import create_engine, event

    example = imported("outbox", monkeypatch)
    engine = create_engine(f"postgresql+psycopg://postgres@/postgres?host={postgres}")
    example.tables.create_all(engine)
    with engine.connect() as connection:
        example.post(connection, "send_mail", address="rolled@back")
        connection.rollback()
    with example.jobs:
        with engine.begin() as connection:
            for n in range(3):
                example.post(connection, "send_mail", address=f"{n}@shop")

        def die(*_: object) -> None:
            raise Killed

        event.listen(engine, "commit", die)
        with pytest.raises(Killed):
            example.relay(engine)
        event.remove(engine, "commit", die)
        assert example.relay(engine, limit=2) == 2
        assert [example.relay(engine), example.relay(engine)] == [1, 0]
        stats = example.jobs.worker().run(drain=True)
        assert stats.done == 3
    engine.dispose()


def test_the_outbox_of_django_relays_each_row_once(postgres: Path, store: Path) -> None:
    pytest.importorskip("django")
    shown = run(
        "-c",
        """
import outbox_django as shop
from django.db import connection, transaction
with connection.schema_editor() as editor:
    editor.create_model(shop.Outbox)
with transaction.atomic():
    shop.post("send_mail", address="a@shop")
    shop.post("send_mail", address="b@shop")
try:
    with transaction.atomic():
        shop.relay()
        raise ZeroDivisionError
except ZeroDivisionError:
    print("died", shop.Outbox.objects.count())
print(shop.relay(), shop.relay())
print(shop.jobs.worker().run(drain=True).done)
""",
        SHOP_STORE=str(store),
        DATABASE_HOST=str(postgres),
        DATABASE_NAME="postgres",
    )
    assert shown.splitlines() == ["died 2", "2 0", "2"]
