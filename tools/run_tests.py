"""Runs the test suites, quick ones first, and ends with one table.

Usage: run_tests.py [--tier quick|test|rest|all] [--suite NAME ...] [--one-by-one] [pytest arguments]

    quick   the unit tests, without those that take half a second or longer
    test    a share of every kind of test: everything but the long ones
    rest    everything that `test` leaves out: the long tests, and the property tests in full
    all     every test

`tests/long.toml` says which tests are long or slow. Property tests try fewer examples in `quick` and `test`.

A suite is a directory in tests/ that holds tests. Each runs in a pytest of its own, so one that
dies takes no other with it, and is then counted as failed. A run in which no test ran is a failure.
Four suites run at the same time (`LANES`): the unit tests use every processor, the others mostly wait
for processes that they started or killed. The output of such a suite is shown when it ends, in one
piece; until then a line a minute says how far it is.

Ctrl-C, SIGTERM and a closed terminal end the run, and the suites with it: each pytest leads a process
group of its own, which is interrupted so that tests clean up, and killed if it takes too long. To
use a debugger, call pytest itself.

Tests start hundreds of Pythons. All of them share one cache of bytecode, also where the caller's
environment forbids to write any: without it each would compile what it imports.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
BYTECODE = Path(sys.prefix) / ".bytecode"
"""Where the Pythons of a run keep what they compiled; `make clean` removes it."""

QUICK = "unit"
WAITING = "integration"
LANES = (
    (QUICK, "conformance"),
    ("spark", "simulation"),
    ("integration", "crash"),
    ("browser", "property"),
)
"""Suites that run one after the other, beside the suites of the other lanes.

The long suites come first. A lane that has ended takes the last suite that waits in another lane.
While the unit tests ran before all others, two processors were idle for 23 % of `make test`: the
Spark tests, which take longest and mostly wait, began last.
"""

ORDER = (*(lane[0] for lane in LANES), *(suite for lane in LANES for suite in lane[1:]))

ON_DISK = ("crash", "integration")
"""Suites whose files lie on a disk. The files of the others lie in memory if there is room.

A commit in memory is the same to a test that kills nothing, and waits for no other commit.
"""

MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 4 << 30
"""How much must be free there: the files of a suite were 500 MB at most."""

HEARTBEAT_S = 60.0
POLL_S = 0.2
CLEANING_UP_S = 15.0
"""How long interrupted tests may take to end what they started."""

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ENDED_BY_SIGNAL = 128
"""An exit code that names a signal is so much higher than its number."""

TIERS = ("quick", "test", "rest", "all")
IN_FULL = "property"
"""The suite of which `rest` runs every test again, with more examples than `test` tries."""

FAILED_TESTS = "MILLSTREAM_FAILED_TESTS"
"""The environment variable that names the file to which a pytest adds the tests that failed."""

PYTEST_OK = 0
PYTEST_NOTHING_COLLECTED = 5


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one suite did; `died` says that pytest itself gave no account of it."""

    suite: str
    passed: int = 0
    skipped: int = 0
    failed: int = 0
    seconds: float = 0.0
    died: bool = False

    @property
    def ran(self) -> int:
        """How many tests came to a verdict."""
        return self.passed + self.failed


def find_suites(tests: Path) -> list[str]:
    """The directories that hold tests: known ones in `ORDER`, then the rest by name."""
    found = {d.name for d in tests.iterdir() if d.is_dir() and any(d.rglob("test_*.py"))}
    return [s for s in ORDER if s in found] + sorted(found.difference(ORDER))


def read_report(suite: str, report: Path, *, seconds: float, exit_code: int) -> Outcome:
    """Counts a JUnit file; an exit code that the counts do not explain is one more failure."""
    if not report.exists():
        return Outcome(suite, failed=1, seconds=seconds, died=True)
    root = ElementTree.parse(report).getroot()
    # A test whose clean-up fails after it passed appears twice: it is one failed test.
    verdicts: dict[tuple[str, str], str] = {}
    for case in root.iter("testcase"):
        name = (case.get("classname", ""), case.get("name", ""))
        if case.find("failure") is not None or case.find("error") is not None:
            verdicts[name] = "failed"
        elif case.find("skipped") is not None:
            verdicts.setdefault(name, "skipped")
        else:
            verdicts.setdefault(name, "passed")
    counts = {v: list(verdicts.values()).count(v) for v in ("passed", "skipped", "failed")}
    unexplained = exit_code not in (PYTEST_OK, PYTEST_NOTHING_COLLECTED) and not counts["failed"]
    return Outcome(
        suite,
        passed=counts["passed"],
        skipped=counts["skipped"],
        failed=1 if unexplained else counts["failed"],
        seconds=seconds,
        died=unexplained,
    )


def environment(caller: Mapping[str, str], tier: str = "all") -> dict[str, str]:
    """Return the caller's environment with a cache of bytecode and the examples of the tier.

    Variables that the caller has set stay as they are.
    """
    ours = {name: value for name, value in caller.items() if name != "PYTHONDONTWRITEBYTECODE"}
    ours.setdefault("PYTHONPYCACHEPREFIX", str(BYTECODE))
    if tier in ("quick", "test"):
        ours.setdefault("MILLSTREAM_HYPOTHESIS", "short")
    return ours


def memory_folder() -> Path | None:
    """Return the folder whose files lie in memory; None if there is none, or little is free."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        free_bytes = shutil.disk_usage(MEMORY).free
        lines = Path("/proc/meminfo").read_text().splitlines()
        sizes = {line.partition(":")[0]: line.split()[1] for line in lines}
        free_bytes = min(free_bytes, int(sizes["MemAvailable"]) << 10)
        return MEMORY if free_bytes >= MEMORY_BYTES_MIN else None
    return None


def selection(suite: str, tier: str) -> list[str]:
    """Return the arguments by which pytest chooses the tests of a tier in one suite."""
    if tier in ("quick", "test"):
        return ["--tier", "quick" if tier == "quick" else "short"]
    if tier == "rest" and suite != IN_FULL:
        return ["--tier", "long"]
    return []


@dataclass(frozen=True, slots=True)
class Run:
    """A suite's pytest; `output` is the file that it prints to, None where that is our output."""

    suite: str
    process: subprocess.Popen[bytes]
    report: Path
    output: Path | None
    started: float

    def is_over(self) -> bool:
        """Whether pytest has ended."""
        return self.process.poll() is not None

    def progress(self) -> str:
        """How long it has run, and the share of its tests that pytest printed last."""
        seconds = time.perf_counter() - self.started
        printed = self.output.read_text(errors="replace") if self.output else ""
        shares = re.findall(r"\[ *(\d+%)\]", printed)
        return f"{self.suite} {seconds:.0f} s" + (f" {shares[-1]}" if shares else "")

    def show(self) -> None:
        """Prints what the suite has printed to a file of its own."""
        if self.output is not None:
            print(f"\n── {self.suite} ──", flush=True)
            print(self.output.read_text(errors="replace"), flush=True)

    def interrupt(self) -> None:
        """Tells the suite's processes to end, as Ctrl-C in a terminal of their own would."""
        if not self.is_over():
            os.killpg(self.process.pid, signal.SIGINT)

    def end(self, *, by: float) -> None:
        """Waits until an interrupted suite has cleaned up; kills its processes if it has not in time."""
        try:
            self.process.wait(timeout=max(0.0, by - time.perf_counter()))
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.show()

    def outcome(self) -> Outcome:
        """What the suite did; waits for its end."""
        exit_code = self.process.wait()
        seconds = time.perf_counter() - self.started
        return read_report(self.suite, self.report, seconds=seconds, exit_code=exit_code)


def spread(suite: str, tier: str) -> list[str]:
    """Return how pytest spreads the tests of a suite: each file's tests stay together, in order.

    The unit tests have one process more than there are processors, since some tests wait. The long
    integration tests wait most of the time, and were 26 of the 30 minutes of `rest`: they have two.
    """
    if suite == QUICK:
        processes = (os.cpu_count() or 1) + 1
    elif suite == WAITING and tier in ("rest", "all"):
        processes = 2
    else:
        return []
    return ["-n", str(processes), "--dist", "loadfile"]


def start(
    suite: str, arguments: Sequence[str], *, reports: Path, is_alone: bool, tier: str = "all"
) -> Run:
    """Starts one suite: alone it prints to our output, beside another to a file of its own."""
    report = reports / f"{suite}.xml"
    output = None if is_alone else reports / f"{suite}.txt"
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", f"tests/{suite}"]
    if suite not in ON_DISK:
        command += [f"--basetemp={reports / suite}", "-o", "tmp_path_retention_policy=failed"]
    command += [
        *spread(suite, tier),
        *selection(suite, tier),
        *arguments,
    ]
    env = {**environment(os.environ, tier), FAILED_TESTS: str(reports / "failed")}
    print(f"\n── {suite}{' begins' if output else ''} ──", flush=True)
    started = time.perf_counter()
    with contextlib.ExitStack() as files:
        file = files.enter_context(output.open("wb")) if output else None
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT if file else None,
            process_group=0,
        )
    return Run(suite, process, report, output, started)


def run_lanes(
    lanes: Sequence[Sequence[str]],
    arguments: Sequence[str],
    *,
    reports: Path,
    tier: str = "all",
    is_to_end: Callable[[], bool] = lambda: False,
) -> Iterator[Outcome]:
    """Runs each lane's suites in turn and the lanes side by side; answers each as it ends.

    A lane without a suite of its own takes the last one that waits in another.
    Once it is to end, or is closed, it ends what runs and begins nothing more.
    """
    waiting = [list(lane) for lane in lanes if lane]
    is_alone = len(waiting) == 1
    running: dict[int, Run] = {}
    heard = time.perf_counter()
    try:
        while (running or any(waiting)) and not is_to_end():
            for lane, suites in enumerate(waiting):
                if lane not in running and any(waiting):
                    suite = suites.pop(0) if suites else max(waiting, key=len).pop()
                    running[lane] = start(
                        suite, arguments, reports=reports, is_alone=is_alone, tier=tier
                    )
            for lane in [lane for lane, run in running.items() if run.is_over()]:
                run = running.pop(lane)
                run.show()
                yield run.outcome()
                heard = time.perf_counter()
            if not is_alone and running and time.perf_counter() - heard >= HEARTBEAT_S:
                print(f"   … {', '.join(run.progress() for run in running.values())}", flush=True)
                heard = time.perf_counter()
            time.sleep(POLL_S)
    finally:
        end_all(running.values())


def end_all(runs: Iterable[Run]) -> None:
    """Ends suites that are interrupted, all of them at the same time."""
    interrupted = list(runs)
    for run in interrupted:
        run.interrupt()
    by = time.perf_counter() + CLEANING_UP_S
    for run in interrupted:
        run.end(by=by)


def note_signals() -> list[int]:
    """The signals that have told this process to end, from now on; each is a number.

    They interrupt nothing: a suite that is just started would otherwise be forgotten.
    """
    noted: list[int] = []
    for one in ENDING:
        if signal.getsignal(one) is not signal.SIG_IGN:
            signal.signal(one, lambda number, _: noted.append(number))
    return noted


def lanes_of(suites: Sequence[str]) -> list[list[str]]:
    """Return the suites by lane; a suite that no lane names comes last in the first lane."""
    lanes = [[suite for suite in suites if suite in lane] for lane in LANES]
    lanes[0] += [suite for suite in suites if not any(suite in lane for lane in LANES)]
    return lanes


def format_table(outcomes: Iterable[Outcome]) -> str:
    """The closing table, one row per suite."""
    lines = [f"{'suite':<14}{'ran':>8}{'skipped':>9}{'failed':>8}{'seconds':>9}"]
    for o in outcomes:
        note = "  pytest died" if o.died else ""
        lines.append(f"{o.suite:<14}{o.ran:>8}{o.skipped:>9}{o.failed:>8}{o.seconds:>9.1f}{note}")
    return "\n".join(lines)


def format_failures(failed: Path, died: Iterable[str], env: Mapping[str, str]) -> str:
    """Return the tests that failed, the seed, and the command that runs exactly them again.

    The command has every variable of ours: the number of examples changes which ones are drawn.
    A suite whose pytest died is run again as a whole.
    """
    tests = failed.read_text().splitlines() if failed.exists() else []
    tests = list(dict.fromkeys([*tests, *(f"tests/{suite}" for suite in died)]))
    if not tests:
        return ""
    names = "\n".join(f"  {test}" for test in tests)
    variables = [
        f"{name}={shlex.quote(value)}"
        for name, value in sorted(env.items())
        if name.startswith("MILLSTREAM_") and name != FAILED_TESTS
    ]
    python = os.path.relpath(sys.executable, ROOT)
    again = " ".join([*variables, python, "-m pytest", *map(shlex.quote, tests)])
    seed = env["MILLSTREAM_SEED"]
    return f"failed, with seed {seed}:\n{names}\n\nto run exactly these again:\n  {again}\n"


def main() -> int:
    """Runs what was asked for; 0 if tests ran and none failed."""
    parser = argparse.ArgumentParser(description="Run the test suites.", allow_abbrev=False)
    parser.add_argument("--tier", choices=TIERS, default="all")
    parser.add_argument("--suite", action="append", choices=find_suites(TESTS))
    parser.add_argument("--one-by-one", action="store_true", help="no suite beside another")
    options, arguments = parser.parse_known_args()
    chosen = [QUICK] if options.tier == "quick" else options.suite
    suites = [s for s in find_suites(TESTS) if chosen is None or s in chosen]
    if os.environ.get("MILLSTREAM_SEED", "") in ("", "random"):  # one seed for all suites
        drawn = secrets.randbelow(2**32) if "MILLSTREAM_SEED" in os.environ else 1
        os.environ["MILLSTREAM_SEED"] = str(drawn)
    is_one_by_one = options.one_by_one or (os.cpu_count() or 1) == 1
    lanes = [suites] if is_one_by_one else lanes_of(suites)
    signals = note_signals()
    with tempfile.TemporaryDirectory(prefix="millstream-tests-", dir=memory_folder()) as reports:
        found = {
            outcome.suite: outcome
            for outcome in run_lanes(
                lanes,
                arguments,
                reports=Path(reports),
                tier=options.tier,
                is_to_end=lambda: bool(signals),
            )
        }
        outcomes = [found[suite] for suite in suites if suite in found]
        failures = format_failures(
            Path(reports) / "failed",
            [o.suite for o in outcomes if o.died],
            environment(os.environ, options.tier),
        )
    passed = sum(o.passed for o in outcomes)
    failed = sum(o.failed for o in outcomes)
    skipped = sum(o.skipped for o in outcomes)
    print(f"\n{format_table(outcomes)}\n")
    if failures:
        print(failures)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    if signals:
        print(f"ended by {signal.Signals(signals[0]).name}: not every test ran")
        return ENDED_BY_SIGNAL + signals[0]
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
