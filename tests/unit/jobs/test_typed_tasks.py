"""Checkers of types know the parameters and the results of tasks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import millstream

pytest.importorskip("mypy")

GOOD = """
from millstream import Job, JobContext, Jobs, Task, aio, gather

jobs = Jobs("shop.db")


@jobs.task
def add(a: int, b: int = 2) -> int:
    return a + b


@jobs.task(max_attempts=3, unique=("waiting", "scheduled"))
def with_context(ctx: JobContext, text: str) -> str:
    ctx.progress(0.5, "half")
    ctx.tx.put(add, 1, b=3)
    return text


@jobs.task(timeout=5)
async def awaited(name: str) -> list[str]:
    return [name]


task: Task[[str], str, str] = with_context
number: int = add(1)
job: Job[int] = add.put(1, b=3)
result: int = add.put(1).result(timeout=5)
text: str = with_context.put("x").result()
names: list[str] = awaited.put("x").result()
later: Job[int] = add.put_in(60, 1)
many: list[Job[int]] = add.put_many([(1,), {"a": 2}])
total: int = add.s(1).then(add.s(b=5)).put().result()
group = gather([add.s(1), add.s(2)], then=with_context.s()).put()


async def use(jobs: aio.Jobs) -> None:
    @jobs.task(name="double")
    def double(n: int) -> int:
        return 2 * n

    n: int = await (await double.put(3)).result()
    print(n, double(4))
"""

WRONG = {
    'add.put("1")': "arg-type",
    "add.put()": "call-arg",
    "add.put(1, c=2)": "call-arg",
    "with_context.put(1)": "arg-type",
    'awaited.put_in(5, n="x")': "call-arg",
    "number_of: str = add.put(1).result()": "assignment",
    'ms.transaction().put(add, "1")': "arg-type",
}


@pytest.fixture
def checked(tmp_path: Path) -> str:
    lines = [*GOOD.splitlines(), "ms = jobs.opened()", *WRONG]
    (tmp_path / "shop.py").write_text("\n".join(lines), encoding="utf-8")
    source = str(Path(millstream.__file__).parent.parent)
    mypy = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--cache-dir",
            str(tmp_path / "cache"),
            "shop.py",
        ],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": source},
        capture_output=True,
        text=True,
        check=False,
    )
    return mypy.stdout


def test_mypy_knows_the_parameters_and_the_results_of_tasks(checked: str) -> None:
    errors = [line for line in checked.splitlines() if ": error:" in line]
    first = len(GOOD.splitlines()) + 2
    by_line = {int(line.split(":")[1]): line for line in errors}
    for number, code in enumerate(WRONG.values(), first):
        found = by_line.pop(number, "")
        assert f"[{code}]" in found or "[call-overload]" in found, (number, checked)
    assert not by_line, checked
