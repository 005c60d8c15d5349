"""`make test`: suites run side by side, each one's output in one piece, and none is lost."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.long_tests import LongTests
from tools import run_tests
from tools.run_tests import (
    Outcome,
    environment,
    find_suites,
    format_failures,
    lanes_of,
    run_lanes,
    selection,
)

CHECKOUT = Path(__file__).resolve().parents[2]
Suite = Callable[[str, str], None]

MEETING = """
import time
from pathlib import Path

def test_that_meets_another():
    here = Path({folder!r})
    print("SAID BY {name}")
    (here / "{name} is here").touch()
    until = time.monotonic() + 60
    while not (here / "{other} is here").exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    assert {passes}
"""


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suite:
    """Writes a suite of one file."""
    monkeypatch.setattr(run_tests, "ROOT", tmp_path)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # most of a pytest's start
    (tmp_path / "pytest.ini").touch()

    def write(name: str, text: str) -> None:
        folder = tmp_path / "tests" / name
        folder.mkdir(parents=True)
        (folder / f"test_{name}.py").write_text(text)

    return write


def counts(outcome: Outcome) -> tuple[str, int, int, bool]:
    return outcome.suite, outcome.passed, outcome.failed, outcome.died


def test_lanes_run_side_by_side_and_what_each_prints_stays_together(
    suite: Suite,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(run_tests, "HEARTBEAT_S", 0.0)
    folder = str(tmp_path)
    suite("one", MEETING.format(folder=folder, name="one", other="two", passes=True))
    suite("two", MEETING.format(folder=folder, name="two", other="one", passes=False))

    found = list(run_lanes([["one"], ["two"]], ["-s", "-p", "no:cacheprovider"], reports=tmp_path))

    assert sorted(map(counts, found)) == [("one", 1, 0, False), ("two", 0, 1, False)]
    printed = capfd.readouterr().out
    assert printed.index("── one begins ──") < printed.index("── two begins ──")
    assert re.search(r"   … one \d+ s, two \d+ s\n", printed), "nobody knows that they run"
    parts = {part.split(" ──\n")[0]: part for part in printed.split("\n── ")}
    assert "SAID BY one" in parts["one"]
    assert "SAID BY two" not in parts["one"]
    assert "SAID BY two" in parts["two"]
    assert "1 failed" in parts["two"]


def test_suites_of_a_lane_follow_each_other_and_one_that_dies_is_counted(
    suite: Suite, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    suite("dies", "import os\ndef test_x():\n    os._exit(3)\n")
    suite("lives", "def test_x():\n    pass\n")

    found = list(run_lanes([["dies", "lives"], []], ["-p", "no:cacheprovider"], reports=tmp_path))

    assert list(map(counts, found)) == [("dies", 0, 1, True), ("lives", 1, 0, False)]
    printed = capfd.readouterr().out
    assert printed.index("── dies ──") < printed.index("── lives ──") < printed.index("1 passed")


def test_a_lane_that_has_ended_takes_the_last_suite_of_the_other(
    suite: Suite, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path)
    suite("short", "def test_x():\n    pass\n")
    suite("long", MEETING.format(folder=folder, name="long", other="taken", passes=True))
    suite("next", "def test_x():\n    pass\n")
    suite("taken", MEETING.format(folder=folder, name="taken", other="long", passes=True))

    lanes = [["long", "next", "taken"], ["short"]]
    found = list(run_lanes(lanes, ["-p", "no:cacheprovider"], reports=tmp_path))

    assert {outcome.suite: outcome.passed for outcome in found} == dict.fromkeys(
        ("short", "long", "next", "taken"), 1
    )


def test_an_interrupted_run_leaves_no_suite_behind(
    suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_tests, "CLEANING_UP_S", 0.0)
    started: list[run_tests.Run] = []
    start = run_tests.start

    def start_and_keep(*given: object, **named: object) -> run_tests.Run:
        started.append(start(*given, **named))  # type: ignore[arg-type]
        return started[-1]

    monkeypatch.setattr(run_tests, "start", start_and_keep)
    suite("quick", "def test_x():\n    pass\n")
    suite("long", "import time\ndef test_x():\n    time.sleep(600)\n")

    running = run_lanes([["quick"], ["long"]], [], reports=tmp_path)
    assert next(running).suite == "quick"
    running.close()  # type: ignore[attr-defined]

    assert [run.suite for run in started] == ["quick", "long"]
    assert all(run.is_over() for run in started)


ANOTHER_CHECKOUT = """
import os, signal, sys
from pathlib import Path
from tools import run_tests

for one in run_tests.ENDING:
    signal.signal(one, signal.SIG_DFL)  # also where what runs these tests ignores it
os.cpu_count = lambda: 2  # with one processor no lane runs beside another
run_tests.ROOT = Path(sys.argv.pop(1))
run_tests.TESTS = run_tests.ROOT / "tests"
run_tests.CLEANING_UP_S = float(sys.argv.pop(1))
sys.exit(run_tests.main())
"""

LONG = """
import signal, subprocess, time

def test_x():
    with open({fifo!r}, "w") as line:
        signal.signal(signal.SIGINT, {on_interrupt})
        command = [{python!r}, "-c", "import time; time.sleep(600)"]
        child = subprocess.Popen(command, pass_fds=[line.fileno()], process_group={group})
        try:
            print("{name} runs", file=line, flush=True)
            time.sleep(600)
        finally:
            child.kill()
            print("{name} has cleaned up", file=line, flush=True)
"""


@pytest.mark.parametrize(
    ("told", "cleans_up"),
    [
        (signal.SIGINT, True),
        (signal.SIGTERM, True),
        (signal.SIGHUP, True),
        (signal.SIGTERM, False),
    ],
)
def test_a_run_that_is_told_to_end_ends_its_suites(
    suite: Suite, tmp_path: Path, told: signal.Signals, cleans_up: bool
) -> None:
    """The pipe is read until its end: then no process that a suite started is left."""
    fifo = tmp_path / "line"
    os.mkfifo(fifo)
    for name in ("one", "spark"):
        on_interrupt = "signal.default_int_handler" if cleans_up else "signal.SIG_IGN"
        text = LONG.format(
            fifo=str(fifo),
            name=name,
            on_interrupt=on_interrupt,
            python=sys.executable,
            group=0 if cleans_up else None,
        )
        suite(name, text)
    patience_s = "200" if cleans_up else "0.1"
    command = [sys.executable, "-c", ANOTHER_CHECKOUT, str(tmp_path), patience_s]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        with fifo.open() as line:
            assert sorted(line.readline() for _ in range(2)) == ["one runs\n", "spark runs\n"]
            run.send_signal(told)
            said = sorted(line)
        printed, _ = run.communicate()

    assert said == (["one has cleaned up\n", "spark has cleaned up\n"] if cleans_up else [])
    assert run.returncode == 128 + told
    assert f"ended by {told.name}: not every test ran" in printed


def test_every_suite_is_in_one_lane_and_unknown_ones_are_run_too() -> None:
    suites = [*find_suites(run_tests.TESTS), "another"]

    lanes = lanes_of(suites)

    assert sorted(suite for lane in lanes for suite in lane) == sorted(suites)
    assert "another" in lanes[0]
    assert "spark" in [lane[0] for lane in lanes], "it takes longest, and must begin at once"


def test_pythons_of_a_run_share_their_bytecode_also_where_the_caller_writes_none() -> None:
    ours = environment({"PYTHONDONTWRITEBYTECODE": "1", "HOME": "x"})

    assert ours == {"HOME": "x", "PYTHONPYCACHEPREFIX": str(run_tests.BYTECODE)}
    assert environment({"PYTHONPYCACHEPREFIX": "mine"}) == {"PYTHONPYCACHEPREFIX": "mine"}


def test_a_tier_tries_few_examples_unless_the_caller_says_otherwise() -> None:
    assert environment({}, "test")["MILLSTREAM_HYPOTHESIS"] == "short"
    assert (
        environment({"MILLSTREAM_HYPOTHESIS": "long"}, "quick")["MILLSTREAM_HYPOTHESIS"] == "long"
    )
    assert "MILLSTREAM_HYPOTHESIS" not in environment({}, "rest")


def test_two_tiers_run_every_test_between_them() -> None:
    assert selection("unit", "quick") == ["--tier", "quick"]
    assert selection("crash", "test") == ["--tier", "short"]
    assert selection("crash", "rest") == ["--tier", "long"]
    assert selection("property", "rest") == [], "the property tests run again, in full"
    assert selection("crash", "all") == []


def test_a_failing_run_ends_with_the_command_that_repeats_its_failures(
    suite: Suite, tmp_path: Path
) -> None:
    suite("one", "def test_good():\n    pass\ndef test_bad():\n    assert False\n")
    (tmp_path / "tests" / "conftest.py").write_text(
        "import os\n"
        "def pytest_terminal_summary(terminalreporter):\n"
        "    with open(os.environ['MILLSTREAM_FAILED_TESTS'], 'a') as failed:\n"
        "        for report in terminalreporter.getreports('failed'):\n"
        "            failed.write(report.nodeid + '\\n')\n"
    )
    command = [sys.executable, "-c", ANOTHER_CHECKOUT, str(tmp_path), "10"]

    run = subprocess.run(command, capture_output=True, text=True, env={**os.environ})

    assert run.returncode == 1
    tail = run.stdout.partition("failed, with seed ")[2]
    assert tail.startswith("1:\n  tests/one/test_one.py::test_bad\n")
    again = tail.splitlines()[-3].strip()
    assert "MILLSTREAM_SEED=1 " in again
    assert again.endswith(" -m pytest tests/one/test_one.py::test_bad")


def test_the_repeating_command_has_the_examples_and_the_settings_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "failed").write_text("tests/unit/test_x.py::test_y[a b]\n")
    env = environment({"MILLSTREAM_SEED": "7", "MILLSTREAM_FLIPS": "all", "HOME": "/"}, "quick")

    again = format_failures(tmp_path / "failed", ["crash"], env).splitlines()[-1].strip()

    assert again.startswith("MILLSTREAM_FLIPS=all MILLSTREAM_HYPOTHESIS=short MILLSTREAM_SEED=7 ")
    assert again.endswith(" -m pytest 'tests/unit/test_x.py::test_y[a b]' tests/crash")
    assert format_failures(tmp_path / "none", [], env) == ""


def test_a_test_is_long_if_the_list_names_it_or_what_it_lies_in() -> None:
    listed = LongTests(
        frozenset({"tests/spark/test_a.py", "tests/crash/test_b.py::test_x", "tests/far"}),
        (("tests/unit/log", "remote"),),
        frozenset({"tests/spark/test_a.py::test_any[2]"}),
    )

    assert listed.has("tests/spark/test_a.py::test_any[1]")
    assert not listed.has("tests/spark/test_a.py::test_any[2]")
    assert listed.has("tests/crash/test_b.py::test_x[case]")
    assert listed.has("tests/far/deep/test_c.py::test_y")
    assert listed.has("tests/unit/log/test_d.py::test_z[remote-1]")
    assert not listed.has("tests/unit/log/test_d.py::test_z[embedded-1]")
    assert not listed.has("tests/unit/logs/test_d.py::test_z[remote-1]")
    assert not listed.has("tests/crash/test_b.py::test_xy")


def test_the_quick_tier_leaves_out_slow_tests_and_long_ones() -> None:
    listed = LongTests(
        frozenset({"tests/unit/test_a.py::test_long"}),
        slow=frozenset({"tests/unit/test_a.py::test_slow"}),
        slow_cases=(("tests/unit", "remote"),),
    )
    tiers = {
        name: [tier for tier in ("quick", "short", "long") if listed.is_in(tier, node)]
        for name in ("long[case]", "slow[case]", "fast[case]", "fast[remote-case]", "long[remote]")
        if (node := f"tests/unit/test_a.py::test_{name}")
    }

    assert tiers == {
        "long[case]": ["long"],
        "slow[case]": ["short"],
        "fast[case]": ["quick", "short"],
        "fast[remote-case]": ["short"],
        "long[remote]": ["long"],
    }


def test_the_list_of_long_tests_names_no_file_that_is_not_there(tmp_path: Path) -> None:
    LongTests.load(run_tests.TESTS / "long.toml")
    (tmp_path / "long.toml").write_text('tests = ["tests/gone/test_a.py"]\n')
    with pytest.raises(ValueError, match="there is no such file"):
        LongTests.load(tmp_path / "long.toml")


def test_files_lie_in_memory_only_where_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_tests, "MEMORY", tmp_path)
    monkeypatch.setattr(run_tests, "MEMORY_BYTES_MIN", 1)
    assert run_tests.memory_folder() == tmp_path
    monkeypatch.setattr(run_tests, "MEMORY_BYTES_MIN", 1 << 60)
    assert run_tests.memory_folder() is None
    monkeypatch.setattr(run_tests, "MEMORY", tmp_path / "none")
    assert run_tests.memory_folder() is None


def test_each_promise_keeps_a_test_in_make_test() -> None:
    """Every section and every bold promise of docs/GUARANTEES.md that names tests names a short one."""
    long = LongTests.load(CHECKOUT / "tests/long.toml")
    promises = re.split(r"\n(?=\*\*|##)", (CHECKOUT / "docs/GUARANTEES.md").read_text())
    named = {promise: re.findall(r"`([a-z]+/[\w/]+\.py[\w:]*)`", promise) for promise in promises}
    unguarded = [
        promise.splitlines()[0]
        for promise, tests in named.items()
        if tests and all(long.has(f"tests/{test}") for test in tests)
    ]
    assert sum(map(len, named.values())) > 100
    assert unguarded == []
