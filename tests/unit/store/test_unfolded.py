"""Unfolded entities are found by their first delta, whatever was folded before, here or elsewhere."""

from __future__ import annotations

from random import Random

from millstream.store.state.unfolded import Unfolded

A, B, C = b"a", b"b", b"c"


def changes(*keys: bytes) -> list[tuple[bytes, None]]:
    return [(key, None) for key in keys]


def test_the_oldest_come_first_and_later_ones_are_not_looked_at() -> None:
    found = Unfolded()
    found.note(1, changes(B, A))
    found.note(2, changes(A, C, C))
    assert list(found.oldest(1)) == [(1, B), (1, A)]
    assert list(found.oldest(2)) == [(1, B), (1, A), (2, C)]
    assert (found.last(A), found.last(B), len(found)) == (2, 1, 3)


def test_what_was_changed_again_stays_after_others_have_folded() -> None:
    found = Unfolded()
    found.note(1, changes(A, B))
    found.note(2, changes(C))
    found.note(3, changes(A))
    found.folded_through(1)
    assert list(found.oldest(3)) == [(2, A), (2, C)]
    found.folded_through(2)
    assert list(found.oldest(3)) == [(3, A)]
    found.folded_through(3)
    assert not len(found)
    assert A not in found


def test_what_was_written_whole_is_found_again_only_when_it_changes() -> None:
    found = Unfolded()
    found.note(1, changes(A, B))
    found.note(2, changes(A))
    found.written(A)
    assert list(found.oldest(2)) == [(1, B)]
    found.note(3, changes(A))
    found.folded_through(2)
    assert list(found.oldest(3)) == [(3, A)]


def test_it_is_what_a_plain_table_of_spans_says() -> None:
    random = Random(7)
    found, spans, folded = Unfolded(), dict[bytes, list[int]](), 0
    names = [b"%d" % number for number in range(12)]
    for seq in range(1, 500):
        some = random.sample(names, random.randint(0, 4))
        found.note(seq, changes(*some))
        for key in some:
            spans.setdefault(key, [seq, seq])[1] = seq
        if random.random() < 0.3:
            folded = random.randint(folded, seq)
            for key in [key for key in some if random.random() < 0.5]:
                found.written(key)
                spans.pop(key, None)
            found.folded_through(folded)
            spans = {
                key: [max(first, folded + 1), last]
                for key, (first, last) in spans.items()
                if last > folded
            }
        through = random.randint(folded, seq)
        expected = sorted((span[0], key) for key, span in spans.items() if span[0] <= through)
        assert sorted(found.oldest(through)) == expected
        assert set(found) == spans.keys()
