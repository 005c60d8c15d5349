"""The stamp of a bucket: what is not of our format is refused, and left as it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream.doctor import examine
from millstream.engine.slate.binding import load, run
from millstream.errors import CannotOpen
from millstream.objects.address import open_objects, parse_address

pytestmark = pytest.mark.requires("s3")

OPENERS: dict[str, Callable[[str], Any]] = {
    "to write": millstream.open,
    "to read": lambda address: millstream.open(address, mode="r"),
    "by the doctor": examine,
}


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    """The folder of a store with one record."""
    folder = tmp_path / "bucket"
    with millstream.open(f"file://{folder}") as ms:
        ms.log("a").append(b"x")
    return folder


def listed(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_new_store_has_a_stamp(bucket: Path) -> None:
    assert (bucket / "format").read_bytes() == b'{"format":1}'
    with millstream.open(f"file://{bucket}", mode="r") as ms:
        assert ms.log("a").end_offset() == 1


@pytest.mark.parametrize(
    ("stamp", "why"),
    [
        (b'{"format":2,"more":"fields"}', "format 2.*upgrade"),
        (b'{"format":"x"}', "not readable"),
        (b"", "not readable"),
        (None, "no store of Millstream's"),
    ],
)
@pytest.mark.parametrize("mode", list(OPENERS))
def test_a_bucket_of_another_format_is_refused_and_left_as_it_is(
    bucket: Path, stamp: bytes | None, why: str, mode: str
) -> None:
    if stamp is None:
        (bucket / "format").unlink()
    else:
        (bucket / "format").write_bytes(stamp)
    before = listed(bucket)
    with pytest.raises(CannotOpen, match=why):
        OPENERS[mode](f"file://{bucket}")
    assert listed(bucket) == before


def test_a_database_of_another_program_is_not_taken_for_a_store(tmp_path: Path) -> None:
    address, module = parse_address(f"file://{tmp_path}/theirs"), load()
    builder = module.DbBuilder(address.prefix, open_objects(module, address))
    run(run(builder.build()).shutdown())
    with pytest.raises(CannotOpen, match="no store of Millstream's"):
        millstream.open(f"file://{tmp_path}/theirs")
