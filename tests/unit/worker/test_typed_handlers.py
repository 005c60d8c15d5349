"""Handlers, messages and answers of queues have types that a user's checker reads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import millstream

pytest.importorskip("mypy")

GOOD = """
from dataclasses import dataclass

import millstream
from millstream import Fate, HandlerTransaction, Message, PutResult, aio


@dataclass
class Mail:
    to: str


def plain(message: Message) -> None:
    mail: Mail = message.json(type=Mail)
    print(mail.to, message.id)


async def awaited(message: Message) -> None: ...


def transacting(message: Message, tx: HandlerTransaction) -> None:
    tx.append("done", message.text)


def use(ms: millstream.Millstream) -> None:
    queue = ms.create_queue("mail", dedup_by="d", dedup_while="running", rate=5, burst=1)
    for worker in (queue.worker(plain), queue.worker(awaited), queue.worker(transacting)):
        worker.stop()
    id: int = queue.put("x")
    result: PutResult = queue.put("x", detail=True)
    cancelled: bool = queue.cancel(id)
    fate: Fate | None = queue.wait(id, timeout=1)
    count: int = queue.info().available
    print(result.repeated, cancelled, fate, count, queue.exists(), queue.peek(state="delayed"))


async def use_async(ms: aio.Millstream) -> None:
    queue = await ms.create_queue("mail")
    id: int = await queue.put("x")
    result: PutResult = await queue.put("x", detail=True)
    fate: Fate | None = await queue.wait(id)
    queue.worker(awaited)
    print(result, fate)
"""

BAD = """
import millstream


def wrong(message: str) -> None: ...


def use(ms: millstream.Millstream) -> None:
    queue = ms.queue("mail")
    queue.worker(wrong)  # refused
    queue.peek(state="sleeping")  # refused
    queue.purge(state="done")  # refused
    ms.create_queue("mail", dedup_while="sometimes")  # refused
"""


def errors_of(path: Path, text: str) -> list[str]:
    path.write_text(text)
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", path.name],
        cwd=path.parent,
        env={**os.environ, "MYPYPATH": str(Path(millstream.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.stderr == ""
    return checked.stdout.splitlines()


@pytest.mark.embedded
def test_a_checker_accepts_good_uses_and_refuses_wrong_ones(tmp_path: Path) -> None:
    """One process for both: reading the package takes most of the time."""
    text = GOOD + BAD.replace("def use(", "def misuse(")
    lines = errors_of(tmp_path / "uses.py", text)
    wrong = [line for line in lines if line.startswith("uses.py:") and ": error:" in line]
    refused = [n for n, line in enumerate(text.splitlines(), 1) if line.endswith("# refused")]
    assert [int(line.split(":")[1]) for line in wrong] == refused, lines
