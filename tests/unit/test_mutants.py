"""The list of planted faults fits the sources, and each fault names a test that `make test` runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import LONG
from tools import mutants
from tools.mutants import Mutant

FAULTS_MIN = 40


@pytest.mark.parametrize("mutant", mutants.load(), ids=lambda mutant: mutant.name)
def test_a_fault_fits_the_sources_and_names_a_test(mutant: Mutant) -> None:
    assert not mutant.is_stale(), f"{mutant.file} does not hold the text to replace exactly once"
    assert mutant.new != mutant.old
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}(" in (mutants.ROOT / file).read_text()
        assert not LONG.has(test), f"{test} is not part of `make test`"


def test_there_are_as_many_faults_as_promised() -> None:
    assert len(mutants.load()) >= FAULTS_MIN


def test_a_fault_is_caught_by_its_test_alone(tmp_path: Path) -> None:
    """The tool itself: a fault that the test cannot see survives, one that it sees is caught."""
    seen = "tests/unit/test_partitioning.py"
    hash_fault = next(one for one in mutants.load() if one.file == "partitioning.py")
    blind = Mutant(
        "a comment", "partitioning.py", '"""Names of partitions,', '"""Names of parts,', (seen,)
    )

    assert mutants.try_mutant(hash_fault).verdict == "caught"
    assert mutants.try_mutant(blind).verdict == "survived"
    assert (
        mutants.try_mutant(Mutant("none", "partitioning.py", "no such text", "", (seen,))).verdict
        == "stale"
    )
