"""Messages that Django puts in its own transaction: delivered exactly once, or not at all.

Django has one configuration per process, so each test is a program of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import millstream
from tests.integration.inbox_reader import InboxReader, inbox_reader

pytestmark = pytest.mark.timeout(120)

Run = Callable[[str], str]

SETUP = """
import sys
import django
from django.conf import settings

settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": sys.argv[1],
            "OPTIONS": {"timeout": 60},
        },
        "other": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
        "dummy": {"ENGINE": "django.db.backends.dummy"},
    },
    INSTALLED_APPS=["django.contrib.contenttypes", "millstream.django"],
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    USE_TZ=True,
)
django.setup()

from django.core.management import call_command
from django.db import connection, connections, models, transaction
from millstream.django import append, put
from millstream.errors import CannotOpen, InvalidInput

class Customer(models.Model):
    name = models.CharField(max_length=50, unique=True)

    class Meta:
        app_label = "shop"

def make_customers():
    with connection.schema_editor() as editor:
        editor.create_model(Customer)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "db.sqlite3"


@pytest.fixture
def run(path: Path) -> Run:
    """Run a program of Django on the database, and return its output."""
    pytest.importorskip("django")

    def run(program: str) -> str:
        source = str(Path(millstream.__file__).parents[1])
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", SETUP + program, str(path)],
            env={**os.environ, "PYTHONPATH": source},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def reader(path: Path) -> Iterator[InboxReader]:
    with inbox_reader(path) as running:
        yield running


def test_a_commit_delivers_once_and_in_order_and_a_rollback_nothing(
    run: Run, reader: InboxReader
) -> None:
    shown = run("""
make_customers()
for first in range(0, 60, 20):
    with transaction.atomic():
        for number in range(first, first + 20):
            customer = Customer.objects.create(name=f"c{number}")
            put("emails", {"id": customer.pk}, key=f"k{number}", headers={"a": 1})
try:
    with transaction.atomic():
        Customer.objects.create(name="gone")
        put("emails", {"id": "gone"})
        Customer.objects.create(name="gone")
except django.db.IntegrityError:
    print("rolled back")
with transaction.atomic():
    put("emails", {"id": 61})
    try:
        with transaction.atomic():
            put("emails", {"id": "rolled back to a savepoint"})
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    put("emails", {"id": 62})
put("emails", "at once", key="k")
print(Customer.objects.count())
""")
    assert shown == "rolled back\n60\n"
    assert reader.values(62) == [{"id": number} for number in range(1, 63)]
    assert reader.next() == ("at once", "k", {"content-type": "text/plain; charset=utf-8"})


def test_records_go_to_logs(run: Run, reader: InboxReader, path: Path) -> None:
    run("""
append("events", {"n": 1}, key="k")
put("emails", "after")
""")
    assert reader.next()[0] == "after"
    with millstream.open(path, mode="r") as ms:
        (record,) = ms.log("events").read()
        assert (record.json(), record.key) == ({"n": 1}, b"k")


def test_a_migration_makes_the_inbox_and_a_store_finds_the_rows_later(run: Run, path: Path) -> None:
    shown = run("""
call_command("migrate", verbosity=0)
call_command("migrate", database="other", verbosity=0)
append("events", {"n": 1})
put("emails", {"n": 2}, using="other")
with connections["other"].cursor() as cursor:
    print(cursor.execute("SELECT queue, value FROM millstream_inbox").fetchall())
call_command("makemigrations", "millstream", check=True, verbosity=0)
""")
    assert shown == "[('emails', '{\"n\":2}')]\n"
    with millstream.open(path, adopt=True) as ms:
        assert ms.log("events").wait(0, timeout=60)
        ms.create_queue("emails")
    run("""
call_command("migrate", verbosity=0)
call_command("migrate", "millstream", "zero", verbosity=0)
put("emails", {"n": 3})
""")
    with inbox_reader(path) as reader:
        assert reader.values(1) == [{"n": 3}]


def test_what_cannot_work_is_refused_at_the_call(run: Run) -> None:
    shown = run("""
for arguments in (
    dict(queue="emails", value="x"),
    dict(queue="emails", value="x", using="dummy"),
    dict(queue="", value="x"),
    dict(queue="emails", value=object()),
):
    try:
        put(**arguments)
    except (CannotOpen, InvalidInput) as error:
        print(type(error).__name__, error)
""")
    missing, dummy, name, value = shown.splitlines()
    assert missing.startswith("CannotOpen the database 'default' has no table millstream_inbox")
    assert "`millstream adopt " in missing
    assert "db.sqlite3`" in missing
    assert dummy.startswith("InvalidInput the database 'dummy' is a database of ")
    assert name.startswith("InvalidName a queue name has 1 to")
    assert value.startswith("InvalidInput a value is bytes, text or JSON")


def test_a_store_in_the_same_process_takes_part(run: Run, path: Path) -> None:
    from millstream.engine.sqlite.neighbour import has_shared_locks

    if not has_shared_locks:
        pytest.skip("this system has no locks of open files")
    shown = run("""
import millstream

make_customers()
connection.close()  # the journal mode changes while no connection is open
with millstream.open(sys.argv[1], adopt=True) as ms:
    queue = ms.create_queue("emails")
    for number in range(10):
        with transaction.atomic():
            Customer.objects.create(name=str(number))
            put("emails", number)
    values = []
    while len(values) < 10:
        values += [message.json() for message in queue.pop(10, wait=60)]
    print(values == list(range(10)))
print(Customer.objects.count())
""")
    assert shown == "True\n10\n"
