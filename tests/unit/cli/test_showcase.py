"""`millstream demo --serve`: two servers, something going on, and an end of all of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

import millstream


def figures(url: str, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The first figures of the live view of which something holds."""
    with httpx.stream("GET", f"{url}/live", timeout=60) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: ") and wanted(found := json.loads(line[6:])):
                return found
    raise AssertionError("the live view has ended")


@pytest.mark.requires("server")
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_it_is_alive_and_ends_with_all_its_children(
    cli: Any,
    program: Callable[..., subprocess.Popen[bytes]],
    ending: signal.Signals,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("demo")))
    with program("demo", "--serve", "--port", "0", "--json") as running:
        assert running.stdout is not None
        told = json.loads(running.stdout.readline())
        first, second = told["servers"]
        assert told["canvas 2"] == f"{second}/demo/canvas"
        if ending != signal.SIGKILL:
            found = figures(first, lambda one: bool(one["rates"]["acked"]))
            assert (found["queues"], found["rooms"], found["logs"]) == (3, 1, 1)
            figures(second, lambda one: bool(one["rates"]["published"]))
            with millstream.open(second) as ms:
                assert ms.log("room:canvas").end_offset() > 0
        os.kill(running.pid, ending)
        assert running.wait(60) == (-ending if ending == signal.SIGKILL else 0)
    for url in (first, second):
        _gone(url)
    assert not list(Path.cwd().iterdir()), "it works in a directory of its own"


def _gone(url: str) -> None:
    """Wait until there is no server any more; one that is told so ends within seconds."""
    try:
        with httpx.stream("GET", f"{url}/live", timeout=60) as answer:
            for _ in answer.iter_lines():
                pass
    except httpx.HTTPError:
        pass
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"{url}/health", timeout=60)
