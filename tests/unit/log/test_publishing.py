"""Promise: what bulk writers staged is published once for each name, whoever asks again."""

from __future__ import annotations

import pytest

from millstream.format.packing import Single
from millstream.log.rules.publishing import FindPublished, PublishParts
from millstream.testing import memory_store

PART = Single(b"a", None, b"", None)


@pytest.mark.embedded
def test_a_name_is_published_once() -> None:
    with memory_store() as ms:
        command = PublishParts("book", 1_000, "first", "events", [PART, PART], "digest")

        first, again = ms.session.execute(command), ms.session.execute(command)

        assert first is not None
        assert (first.offset, first.count) == (0, 2)
        assert again is None
        assert ms.log("events").end_offset() == 2
        assert ms.session.execute(FindPublished("book", "first")) == first
