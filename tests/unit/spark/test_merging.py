"""Promise: files are merged by log and date, up to a size, and never across a gap."""

from __future__ import annotations

from millstream.spark.archive.archive import ArchivedFile, Segment
from millstream.spark.archive.merging import plan_merges
from millstream.spark.source.losses import Loss

DAYS = ("2026-01-01", "2026-01-02")


def file(start: int, stop: int, *, day: int = 0, size: int = 10) -> ArchivedFile:
    return ArchivedFile(
        path=f"{start}", partition=DAYS[day], start=start, stop=stop, rows=stop - start, bytes=size
    )


def segment(*files: ArchivedFile, lost: list[Loss] | None = None) -> Segment:
    ends = min(one.start for one in files), max(one.stop for one in files)
    return Segment(
        log="a",
        created=1,
        start=ends[0],
        stop=ends[1],
        files=list(files),
        written=5,
        lost=lost or [],
    )


def planned(segments: list[Segment], target: int) -> list[list[tuple[str, list[int]]]]:
    return [
        [(merge.partition, [one.start for one in merge.files]) for merge in plan.merges]
        for plan in plan_merges(segments, target)
    ]


def test_neighbours_of_a_date_are_merged_up_to_a_size() -> None:
    segments = [segment(file(n, n + 5)) for n in range(0, 25, 5)]
    assert planned(segments, 100) == [[(DAYS[0], [0, 5, 10, 15, 20])]]
    assert planned(segments, 20) == [[(DAYS[0], [0, 5]), (DAYS[0], [10, 15])]]
    assert planned(segments, 19) == []


def test_dates_are_kept_apart() -> None:
    segments = [segment(file(0, 5), file(5, 9, day=1)), segment(file(9, 12, day=1))]
    assert planned(segments, 100) == [[(DAYS[1], [5, 9])]]


def test_a_gap_is_not_merged_over() -> None:
    segments = [segment(file(0, 5)), segment(file(7, 9)), segment(file(9, 12))]
    assert planned(segments, 100) == [[(DAYS[0], [7, 9])]]


def test_files_whose_offsets_cross_stay_apart() -> None:
    segments = [segment(file(0, 8), file(4, 12)), segment(file(12, 13))]
    assert planned(segments, 100) == [[(DAYS[0], [4, 12])]]


def test_the_segment_that_takes_their_place_has_all_that_they_had() -> None:
    loss = Loss("a", 5, 6, "damaged")
    first, last = segment(file(0, 5), file(6, 9, day=1), lost=[loss]), segment(file(9, 12))
    (plan,) = plan_merges([first, last], 100)
    made = file(0, 12)
    joined = plan.joined([made], 77)
    assert (joined.start, joined.stop, joined.lost, joined.written) == (0, 12, [loss], 77)
    assert joined.files == [made, first.files[1]]
    assert [(one.path, one.at) for one in joined.replaced] == [("0", 77), ("9", 77)]
    assert set(joined.paths()) == {"0", "6", "9"}
