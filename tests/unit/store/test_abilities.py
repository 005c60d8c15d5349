"""What only some engines can do is refused by the others, in words; memory can do none of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import millstream
from millstream import SqliteOptions
from millstream.errors import InvalidInput
from millstream.testing import memory_store

FORKING = """
import os, sys, threading
import millstream
from millstream.errors import CannotOpen, Closed

ms = millstream.open(":memory:")
ms.log("x").append(b"before")
done = threading.Event()

def append():
    while not done.is_set():
        ms.log("x").append(b"beside")

writer = threading.Thread(target=append)
writer.start()
child = os.fork()
if child == 0:
    code = 1
    try:
        for use in (ms.log("x").last, lambda: ms.log("x").append(b"child"), ms.fold):
            try:
                use()
            except CannotOpen as error:
                assert "open a store in the child" in str(error), error
            else:
                raise AssertionError("a child used a store that does not cross a fork")
        ms.close()
        own = millstream.open(":memory:")
        own.log("x").append(b"own")
        own.close()
        code = 0
    finally:
        os._exit(code)
done.set()
writer.join()
_, status = os.waitpid(child, 0)
before = ms.log("x").end_offset()
assert ms.log("x").append(b"after") == before
ms.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_sql_on_an_engine_without_it_is_refused_and_the_rest_undone() -> None:
    def bill(ms: millstream.Millstream) -> None:
        with ms.transaction() as tx:
            tx.append("orders", b"1")
            tx.sql("CREATE TABLE invoice (id INTEGER)")

    with memory_store() as ms:
        with pytest.raises(InvalidInput, match="an engine with SQL"):
            bill(ms)
        assert ms.log("orders").end_offset() == 0
        ms.log("orders").append(b"life goes on")


def test_a_store_that_crosses_no_fork_goes_on_in_the_parent_and_is_refused_in_the_child() -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKING]
    done = subprocess.run(command, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()


def test_options_of_another_engine_are_refused() -> None:
    with pytest.raises(InvalidInput, match="for a file"):
        millstream.open(":memory:", options=SqliteOptions())
    with pytest.raises(InvalidInput, match="for a file"):
        millstream.open("http://127.0.0.1:1", options=SqliteOptions())
