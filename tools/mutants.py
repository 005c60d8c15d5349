"""Plants one fault at a time in a copy of the sources, and checks that a test notices it.

Usage: mutants.py [--only NAME ...] [--find] [--jobs N] [--list]

`mutants.toml` lists the faults. Each names a file below `src/millstream`, the text to replace, the
text to put there, and the test of `make test` that must fail. The text must stand in the file once:
a fault that fits nowhere is reported as stale, so the list follows the sources.

A fault is *caught* if the named test fails. It *survives* if the test passes: then a test is
missing. The named tests also run without any fault, and must pass, or their failures prove nothing.

With `--find` the tests may be files or folders: the report then names the first test that fails.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parent.parent
LIST = Path(__file__).with_name("mutants.toml")
PACKAGE = Path("src/millstream")

TIMEOUT_S = 300.0
"""The longest run of one fault's tests. A fault that makes its test hang is caught by that."""

PYTEST_FAILED = 1

Verdict = Literal["caught", "survived", "stale", "broken"]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault: replace `old` by `new` in a file, and `tests` must fail."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def is_stale(self, root: Path = ROOT) -> bool:
        """Return whether the text to replace does not stand in the file exactly once."""
        path = root / PACKAGE / self.file
        return not path.exists() or path.read_text().count(self.old) != 1

    def plant(self, root: Path) -> None:
        """Put the fault into the sources below `root`."""
        path = root / PACKAGE / self.file
        path.write_text(path.read_text().replace(self.old, self.new))


@dataclass(frozen=True, slots=True)
class Result:
    """The verdict on one fault, with the first test that failed."""

    mutant: Mutant
    verdict: Verdict
    failed_test: str = ""
    seconds: float = 0.0
    output: str = ""


def load(path: Path = LIST) -> list[Mutant]:
    """Read the list of faults. Raises `ValueError` if two faults have the same name."""
    rows = tomllib.loads(path.read_text())["mutant"]
    mutants = [
        Mutant(row["name"], row["file"], row["old"], row["new"], tuple(row["tests"]))
        for row in rows
    ]
    names = [mutant.name for mutant in mutants]
    if len(set(names)) != len(names):
        raise ValueError("two faults of mutants.toml have the same name")
    return mutants


def run_tests(
    sources: Path, tests: Iterable[str], *, timeout_s: float | None
) -> subprocess.CompletedProcess[str]:
    """Run tests against the package in `sources`, until the first one fails."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--tb=short", "-p", "no:cacheprovider"]
    env = {**os.environ, "PYTHONPATH": str(sources / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    for name in ("PYTHONPYCACHEPREFIX", "MILLSTREAM_FAILED_TESTS"):
        env.pop(name, None)
    return subprocess.run(
        [*command, *tests],
        cwd=ROOT,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


def try_mutant(mutant: Mutant) -> Result:
    """Plant a fault in a copy of the sources and run its tests there."""
    if mutant.is_stale():
        return Result(mutant, "stale")
    began_s = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="millstream-mutant-") as folder:
        root = Path(folder)
        shutil.copytree(ROOT / "src", root / "src", ignore=shutil.ignore_patterns("__pycache__"))
        mutant.plant(root)
        try:
            done = run_tests(root, mutant.tests, timeout_s=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            seconds = time.perf_counter() - began_s
            return Result(mutant, "caught", "the tests did not end", seconds)
    seconds = time.perf_counter() - began_s
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if done.returncode == PYTEST_FAILED and failed:
        return Result(mutant, "caught", failed[1], seconds)
    verdict: Verdict = "survived" if done.returncode == 0 else "broken"
    return Result(mutant, verdict, "", seconds, done.stdout[-2_000:] + done.stderr[-500:])


def check_baseline(mutants: Sequence[Mutant]) -> bool:
    """Run the tests of all faults on the sources as they are; False if one fails."""
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    print(f"without a fault: {len(tests)} tests", flush=True)
    done = run_tests(ROOT, tests, timeout_s=None)  # pytest ends a test that hangs
    if done.returncode:
        print(done.stdout[-4_000:])
    return done.returncode == 0


def report(result: Result) -> None:
    """Print one line for a fault, and what pytest said if the fault was not caught."""
    print(f"{result.verdict:<9}{result.seconds:6.1f} s  {result.mutant.name}", flush=True)
    if result.failed_test:
        print(f"{'':19}{result.failed_test}", flush=True)
    if result.verdict in ("survived", "broken"):
        print(result.output, flush=True)


def main() -> int:
    """Try the faults that were named; 0 if each of them is caught."""
    parser = argparse.ArgumentParser(description="Plant faults, and see a test notice each.")
    parser.add_argument("--only", action="append", metavar="NAME", help="a fault, by its name")
    parser.add_argument("--find", action="store_true", help="skip the run without a fault")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="faults at a time")
    parser.add_argument("--list", action="store_true", help="print the names and the tests")
    options = parser.parse_args()
    mutants = load()
    if options.only:
        unknown = set(options.only).difference(mutant.name for mutant in mutants)
        if unknown:
            parser.error(f"no fault is named {', '.join(sorted(unknown))}; see --list")
        mutants = [mutant for mutant in mutants if mutant.name in options.only]
    if options.list:
        for mutant in mutants:
            print(f"{mutant.name}: {', '.join(mutant.tests)}")
        return 0
    if not options.find and not check_baseline(mutants):
        print("the tests fail without a fault: mend them first")
        return 1
    results = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for result in pool.map(try_mutant, mutants):
            report(result)
            results.append(result)
    caught = sum(result.verdict == "caught" for result in results)
    print(f"\n{caught} of {len(results)} faults caught")
    return 0 if caught == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
