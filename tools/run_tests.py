"""Runs every test suite, quick ones first, and ends with one table.

Usage: run_tests.py [--suite NAME ...] [pytest arguments]

A suite is a directory in tests/ that holds tests. Each runs in a pytest of its own, so one that
dies takes no other with it, and is then counted as failed. A run in which no test ran is a failure.
The quick suite uses every processor; the others measure, kill or drive something, and have the
machine to themselves.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
ORDER = (
    "unit",
    "property",
    "conformance",
    "simulation",
    "crash",
    "integration",
    "spark",
    "browser",
)
QUICK = "unit"
ALONGSIDE = ("-n", str((os.cpu_count() or 1) + 1), "--dist", "loadfile")
"""How the quick suite shares the processors: each file's tests stay together, and in order.

One process more than there are processors, since some tests wait for others' processes.
"""

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


def run_suite(suite: str, arguments: Sequence[str], *, reports: Path, place: str) -> Outcome:
    """Runs one suite to its end, with its output on ours; `place` says how far the run is."""
    report = reports / f"{suite}.xml"
    print(f"\n── {suite} ({place}) ──", flush=True)
    started = time.perf_counter()
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            f"--junitxml={report}",
            f"tests/{suite}",
            *(ALONGSIDE if suite == QUICK else ()),
            *arguments,
        ],
        cwd=ROOT,
        check=False,
    )
    seconds = time.perf_counter() - started
    return read_report(suite, report, seconds=seconds, exit_code=done.returncode)


def format_table(outcomes: Iterable[Outcome]) -> str:
    """The closing table, one row per suite."""
    lines = [f"{'suite':<14}{'ran':>8}{'skipped':>9}{'failed':>8}{'seconds':>9}"]
    for o in outcomes:
        note = "  pytest died" if o.died else ""
        lines.append(f"{o.suite:<14}{o.ran:>8}{o.skipped:>9}{o.failed:>8}{o.seconds:>9.1f}{note}")
    return "\n".join(lines)


def main() -> int:
    """Runs what was asked for; 0 if tests ran and none failed."""
    parser = argparse.ArgumentParser(description="Run the test suites.", allow_abbrev=False)
    parser.add_argument("--suite", action="append", choices=find_suites(TESTS))
    options, arguments = parser.parse_known_args()
    suites = [s for s in find_suites(TESTS) if options.suite is None or s in options.suite]
    with tempfile.TemporaryDirectory(prefix="millstream-tests-") as reports:
        outcomes = [
            run_suite(s, arguments, reports=Path(reports), place=f"{n} of {len(suites)}")
            for n, s in enumerate(suites, 1)
        ]
    passed = sum(o.passed for o in outcomes)
    failed = sum(o.failed for o in outcomes)
    skipped = sum(o.skipped for o in outcomes)
    print(f"\n{format_table(outcomes)}\n")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
