"""A scrub reads every row in the background, finds damage that nobody has met, and raises no false alarm."""

from __future__ import annotations

import multiprocessing
import os
import random
import stat
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import millstream
from millstream.engine import scrub as scrubs
from millstream.engine.scrub_notes import NotesFile
from millstream.engine.sqlite.options import SqliteOptions
from millstream.engine.sqlite.schema import FIRST_INDEX as INDEX
from millstream.engine.sqlite.schema import SECOND_INDEX
from millstream.errors import InvalidInput
from millstream.format import keys
from millstream.testing import Probe, memory_store
from tests.unit.store.scrubbed import INTERIORS, LEAVES, Scrubbed, cut_cells


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.db"


@pytest.fixture
def given(path: Path) -> Iterator[Scrubbed]:
    given = Scrubbed(path)
    yield given
    given.close()


def fill(given: Scrubbed, logs: int = 40) -> None:
    """Names, heads, entries, blocks and single payloads, enough for trees of several pages."""
    given.fold()  # so that the rows which are needed to open the store come first
    noise = random.Random(1)
    for number in range(logs):
        log = given.ms.log(f"log-{number:03}-{'x' * 40}")
        log.append_many([noise.randbytes(500) for _ in range(20)])
        log.append(noise.randbytes(10_000))
    given.fold()


def test_a_pass_reads_every_row_and_finds_nothing_wrong_with_a_sound_store(given: Scrubbed) -> None:
    fill(given)
    given.first_minute()
    given.scrub.turn()
    assert given.ms.stats()["scrub"] == "running"
    given.minutes(1)
    found = given.ms.stats()
    assert (found["scrub"], found["scrub_progress"], found["scrub_findings"]) == (
        "resting",
        1.0,
        [],
    )
    assert found["scrub_age_s"] is not None
    assert found["scrub_rows"] > 40 * 4


def test_nothing_is_done_in_the_first_minute_and_no_file_is_made(
    given: Scrubbed, path: Path
) -> None:
    fill(given, 1)
    given.clock.advance(59)
    given.scrub.turn()
    assert given.ms.stats()["scrub"] == "waiting"
    assert sorted(one.name for one in path.parent.iterdir()) == ["s.db", "s.db-shm", "s.db-wal"]


@pytest.mark.parametrize(
    "kind", [keys.HEAD, keys.ENTRY, keys.PAYLOAD, keys.PAYLOAD_BLOCK, keys.DELTA]
)
def test_a_damaged_row_is_found_and_forgotten_once_it_is_gone(given: Scrubbed, kind: int) -> None:
    fill(given)
    key = sorted(given.probe.rows(kind))[-1 if kind == keys.DELTA else 3]
    given.probe.damage(key)
    given.first_minute()
    given.minutes(1)
    (finding,) = given.findings()
    assert finding.endswith("its checksum does not fit")
    assert key.hex() not in finding, "the place is told in words"
    given.probe.damage(key)  # the same bit once more: it is as it was
    given.minutes(2)
    assert given.findings() == []


def test_a_finding_stays_as_long_as_the_damage_does(given: Scrubbed) -> None:
    fill(given)
    given.probe.damage(sorted(given.probe.rows(keys.HEAD))[3])
    given.first_minute()
    given.minutes(1)
    before = given.findings()
    given.minutes(130)  # two more passes
    assert given.findings() == before
    assert len(before) == 1


@pytest.mark.parametrize("kinds", [LEAVES, INTERIORS])
@pytest.mark.parametrize(
    ("tree", "words"),
    [
        (INDEX, "the index does not lead to it"),
        (SECOND_INDEX, "the index does not lead to it"),
        ("millstream_record", "it is in the index, and its row is gone"),
        ("millstream_payload", "is gone"),
        ("millstream_block", "is gone"),
    ],
)
def test_rows_that_a_damaged_page_hides_are_found(
    path: Path, tree: str, words: str, kinds: set[int]
) -> None:
    given = Scrubbed(path)
    fill(given, 150)
    given.close()
    keep = 0.9 if kinds is INTERIORS else 0.5
    sound = cut_cells(path, tree, kinds=kinds, keep=keep)
    given.open()
    given.first_minute()
    given.minutes(3)
    found = given.findings()
    assert [one for one in found if words in one], found
    given.close()
    path.write_bytes(sound)
    given.open()
    given.first_minute()
    given.minutes(3)
    assert given.findings() == []
    given.close()


def test_a_gap_between_commits_is_found(given: Scrubbed) -> None:
    for number in range(20):
        given.ms.log("a").append(str(number).encode())
    engine = given.probe.store.engine
    with engine.read() as snapshot:
        connection = snapshot.connection  # type: ignore[attr-defined]
        place = connection.filename
    import apsw

    with apsw.Connection(place) as connection:
        connection.set_busy_timeout(60_000)
        connection.execute("DELETE FROM millstream_delta WHERE id = 7")
    given.first_minute()
    given.minutes(1)
    assert given.findings() == ["commit 7 is gone, and commit 8 is there"]


def test_a_page_that_cannot_be_read_is_one_finding_and_the_pass_goes_on_behind_it(
    path: Path,
) -> None:
    given = Scrubbed(path)
    fill(given, 150)
    rows = len(given.probe.rows(keys.PAYLOAD))
    given.close()
    data = path.read_bytes()
    from tests.unit.store.scrubbed import pages_of, root_page

    leaves = [
        page
        for page, kind in pages_of(data, root_page(path, "millstream_payload"))
        if kind in LEAVES
    ]
    at = (leaves[len(leaves) // 2] - 1) * 4096
    path.write_bytes(data[:at] + b"\xff" * 4096 + data[at + 4096 :])
    given.open()
    given.first_minute()
    given.minutes(1)
    unreadable = [one for one in given.findings() if one.startswith("payloads cannot be read")]
    assert len(unreadable) == 1, given.findings()
    assert "to before payload " in unreadable[0]
    assert given.ms.stats()["scrub"] == "resting"
    assert rows > 100
    given.close()


def test_a_pass_goes_on_where_it_was_after_a_restart(
    given: Scrubbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(given)
    monkeypatch.setattr(scrubs, "ROWS_MAX", 20)
    given.first_minute()
    given.scrub.turn()
    for _ in range(5):
        given.clock.advance(1)
        given.scrub.turn()
    before = given.ms.stats()["scrub_progress"]
    assert 0 < before < 1
    given.close()
    given.open()
    assert given.ms.stats()["scrub_progress"] == before
    given.first_minute()
    given.scrub.turn()
    given.clock.advance(1)
    given.scrub.turn()
    assert given.ms.stats()["scrub_progress"] > before
    assert given.ms.stats()["scrub_rows"] <= 40


def test_findings_and_the_last_pass_outlive_a_restart(given: Scrubbed) -> None:
    fill(given)
    given.probe.damage(sorted(given.probe.rows(keys.HEAD))[3])
    given.first_minute()
    given.minutes(1)
    found = given.findings()
    given.close()
    given.open()
    assert given.findings() == found != []
    assert given.ms.stats()["scrub_age_s"] is not None
    given.first_minute()
    given.scrub.turn()
    assert given.ms.stats()["scrub"] == "resting", "no new pass before its hour"


def test_the_notes_of_another_store_are_ignored(given: Scrubbed, path: Path) -> None:
    fill(given, 2)
    given.first_minute()
    given.minutes(1)
    given.close()
    path.unlink()
    given.open()
    assert given.ms.stats()["scrub_age_s"] is None


@pytest.mark.parametrize("left", [b"", b"{", b"\xff\xfe", b"[1]", b'{"whose": 3}'])
def test_notes_that_make_no_sense_are_begun_anew(given: Scrubbed, path: Path, left: bytes) -> None:
    fill(given, 2)
    Path(f"{path}-scrub").write_bytes(left)
    given.first_minute()
    given.minutes(1)
    assert given.ms.stats()["scrub"] == "resting"


def test_a_place_for_the_notes_that_cannot_be_written_costs_only_the_notes(
    given: Scrubbed, path: Path
) -> None:
    fill(given, 2)
    Path(f"{path}-scrub").mkdir()
    given.first_minute()
    given.minutes(1)
    assert given.ms.stats()["scrub"] == "resting"


def test_the_notes_have_the_permissions_of_the_store(tmp_path: Path) -> None:
    path = tmp_path / "group.db"
    given = Scrubbed(path)
    path.chmod(0o640)
    given.first_minute()
    given.minutes(1)
    given.close()
    assert stat.S_IMODE(os.stat(f"{path}-scrub").st_mode) == 0o640


def test_of_two_handles_one_scrubs_and_both_tell_what_it_found(path: Path) -> None:
    first = Scrubbed(path)
    fill(first)
    first.probe.damage(sorted(first.probe.rows(keys.HEAD))[3])
    second = Scrubbed(path, first.clock)
    first.first_minute()
    first.minutes(1)
    second.minutes(1)
    assert second.ms.stats()["scrub"] == "elsewhere"
    assert second.ms.stats()["scrub_rows"] == 0
    assert second.findings() == first.findings() != []
    first.close()
    second.minutes(2)
    assert second.ms.stats()["scrub"] == "resting"
    second.close()


def _scrub_in_child(path: str, ready: multiprocessing.synchronize.Event, done: object) -> None:
    given = Scrubbed(Path(path))
    given.first_minute()
    given.minutes(1)
    ready.set()
    done.wait()  # type: ignore[attr-defined]


def test_a_process_that_is_killed_lets_another_one_scrub(given: Scrubbed, path: Path) -> None:
    fill(given, 3)
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    child = context.Process(target=_scrub_in_child, args=(str(path), ready, done))
    child.start()
    assert ready.wait(60)
    given.first_minute()
    given.scrub.turn()
    assert given.ms.stats()["scrub"] == "elsewhere"
    child.kill()
    child.join()
    given.minutes(2)
    assert given.ms.stats()["scrub"] in ("running", "resting")
    assert given.ms.stats()["scrub_age_s"] is not None


def test_a_slow_disk_is_read_less_often(given: Scrubbed, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(given)
    monkeypatch.setattr(scrubs, "ROWS_MAX", 5)
    engine = given.probe.store.engine
    scrub, steps = engine.scrub, []  # type: ignore[attr-defined]

    def slow(*arguments: object) -> object:
        given.clock.advance(0.5)
        steps.append(given.clock.seconds())
        return scrub(*arguments)

    monkeypatch.setattr(engine, "scrub", slow)
    given.first_minute()
    given.minutes(10)
    pauses = [after - before for before, after in pairwise(steps)]
    assert len(steps) <= 13
    assert min(pauses) >= 0.5 / 0.01 - 1


def test_a_turn_beside_a_complete_pass_reads_nothing(
    given: Scrubbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(given, 4)
    given.first_minute()
    monkeypatch.setattr(scrubs, "ROWS_MAX", 7)
    engine, places = given.probe.store.engine, []
    read = engine.scrub  # type: ignore[attr-defined]

    def read_beside_a_turn(stage: str, at: str, *others: object) -> object:
        places.append((stage, at))
        if len(places) % 2:  # a turn that reads comes here as well
            given.scrub.turn()
        return read(stage, at, *others)

    monkeypatch.setattr(engine, "scrub", read_beside_a_turn)
    given.scrub.pass_over()
    assert len(places) == len(set(places)) > len(engine.scrub_stages)  # type: ignore[attr-defined]
    assert given.findings() == []


def test_a_complete_pass_reads_again_where_the_background_has_been(
    given: Scrubbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(given, 4)
    given.first_minute()
    with monkeypatch.context() as patch:
        patch.setattr(scrubs, "ROWS_MAX", 20)
        given.scrub.turn()
    assert given.ms.stats()["scrub"] == "running"
    given.probe.damage(sorted(given.probe.rows(keys.HEAD))[0])
    given.scrub.pass_over()
    (finding,) = given.findings()
    assert finding.endswith("its checksum does not fit")


def test_the_position_is_written_down_once_a_minute(
    given: Scrubbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(given, 150)
    monkeypatch.setattr(scrubs, "ROWS_MAX", 1)
    written: list[float] = []
    monkeypatch.setattr(NotesFile, "write", lambda *_: written.append(given.clock.seconds()))
    given.first_minute()
    given.minutes(5)
    assert given.ms.stats()["scrub"] == "running"
    assert len(written) <= 5


def test_it_can_be_turned_off_and_a_share_must_be_one(path: Path) -> None:
    given = Scrubbed(path, scrub_share=0)
    given.first_minute()
    given.minutes(1)
    assert given.ms.stats()["scrub"] == "off"
    given.close()
    for share in (-0.1, 0.6, float("nan"), "0.1"):
        with pytest.raises(InvalidInput, match="scrub_share"):
            millstream.open(path, options=SqliteOptions(scrub_share=share))  # type: ignore[arg-type]


def test_a_handle_that_only_reads_writes_nothing_and_tells_what_others_found(path: Path) -> None:
    given = Scrubbed(path)
    fill(given)
    given.probe.damage(sorted(given.probe.rows(keys.HEAD))[3])
    given.first_minute()
    given.minutes(1)
    found = given.findings()
    given.close()
    before = Path(f"{path}-scrub").read_bytes()
    with millstream.open(path, mode="r") as ms:
        assert ms.stats()["scrub"] == "off"
        assert ms.stats()["scrub_findings"] == found
    assert Path(f"{path}-scrub").read_bytes() == before


def test_a_store_in_memory_is_not_scrubbed() -> None:
    with memory_store() as ms:
        assert ms.stats()["scrub"] == "off"


def test_a_forked_child_leaves_the_scrub_to_its_parent(given: Scrubbed) -> None:
    fill(given, 3)
    given.first_minute()
    given.scrub.turn()
    child = os.fork()
    if child == 0:
        state = given.ms.stats()["scrub"]
        given.first_minute()
        given.scrub.turn()
        after = given.ms.stats()["scrub"]
        os._exit(0 if (state, after) == ("waiting", "elsewhere") else 1)
    assert os.waitpid(child, 0)[1] == 0
    given.minutes(1)
    assert given.ms.stats()["scrub"] == "resting"


def test_the_keeper_scrubs_by_itself(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrubs, "FIRST_S", 0.0)
    with millstream.open(path) as ms:
        ms.log("a").append(b"1")
        probe = Probe(ms)
        probe.store.scrub_from_now(0.1)
        probe.until(
            lambda: ms.log("a").append(b"2") is not None and ms.stats()["scrub_age_s"] is not None
        )
        assert ms.stats()["scrub_findings"] == []
