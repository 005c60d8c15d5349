"""An object store that refuses: its quota is full, a token has expired, a clock is wrong, a bucket is gone.

A proxy before moto's S3 answers so for a while, to writes or to everything. Promises:

- Nothing that was acknowledged is lost, and the handle takes writes again without a restart.
- Writers are told what the object store says, and so is a handle that is opened meanwhile, at once.
"""

from __future__ import annotations

import pytest

import millstream
from millstream import Millstream, Producer, SlateOptions
from millstream.bench.objects import ObjectAnswer
from millstream.doctor import examine
from millstream.errors import CannotOpen, Fenced, MillstreamError, OutcomeUnknown, StoreError
from tests.integration.faulty_objects import append_until_it_works, refusal, values
from tests.kit.objects import ObjectProxy

pytestmark = [pytest.mark.requires("s3"), pytest.mark.faults, pytest.mark.slow]

QUICK = SlateOptions(commit_timeout_s=1.0, read_timeout_s=20.0)
WRITES = ("PUT", "POST", "DELETE")


def told_until(ms: Millstream, code: str) -> None:
    """Append as an impatient caller does, until the error says what the object store says."""
    while True:
        with pytest.raises(MillstreamError) as refused:
            ms.log("a").append(b"refused")
        assert refused.type is not Fenced
        if code in refused.value.message:
            return


@pytest.mark.parametrize(
    ("status", "code", "methods"),
    [
        (507, "InsufficientStorage", WRITES),
        (403, "QuotaExceeded", WRITES),
        (503, "SlowDown", WRITES),
        (400, "ExpiredToken", ("GET", *WRITES)),
        (403, "RequestTimeTooSkewed", ("GET", *WRITES)),
    ],
)
def test_what_is_refused_is_named_and_taken_up_again(
    proxy: ObjectProxy, address: str, status: int, code: str, methods: tuple[str, ...]
) -> None:
    with millstream.open(address, options=QUICK) as ms:
        append_until_it_works(ms, b"before", Producer("before", sequence=0))
        proxy.script = lambda method, _path: refusal(status, code) if method in methods else None
        doubtful = Producer("p", sequence=0)
        with pytest.raises(OutcomeUnknown):
            ms.log("a").append(b"doubtful", producer=doubtful)
        told_until(ms, code)
        assert values(ms) == [b"before"]  # reads go on
        with pytest.raises(CannotOpen, match=code) as refused:
            millstream.open(address, options=QUICK)
        assert refused.value.test == "put_if_absent"
        if "GET" in methods:
            with pytest.raises(StoreError, match=code):
                millstream.open(address, mode="r", options=QUICK)
            with pytest.raises(StoreError, match=code):
                examine(address)
        proxy.script = None
        append_until_it_works(ms, b"doubtful", doubtful)
        append_until_it_works(ms, b"after", Producer("p", sequence=1))
        assert values(ms) == [b"before", b"doubtful", b"after"]
    with millstream.open(address) as ms:
        assert values(ms) == [b"before", b"doubtful", b"after"]


def test_a_bucket_that_is_gone_under_a_writer_is_named(proxy: ObjectProxy, address: str) -> None:
    with millstream.open(address, options=QUICK) as ms:
        append_until_it_works(ms, b"before", Producer("before", sequence=0))
        proxy.script = lambda _method, _path: refusal(404, "NoSuchBucket")
        with pytest.raises(OutcomeUnknown):
            ms.log("a").append(b"doubtful")
        told_until(ms, "NoSuchBucket")
        for mode in ("rw", "r"):
            with pytest.raises(StoreError, match="NoSuchBucket"):
                millstream.open(address, mode=mode, options=QUICK)
        with pytest.raises(StoreError, match="NoSuchBucket"):
            examine(address)
        proxy.script = None
        append_until_it_works(ms, b"after", Producer("p", sequence=0))
        found = values(ms)
        assert (found[0], found[-1]) == (b"before", b"after")
        assert set(found) <= {b"before", b"doubtful", b"after"}


@pytest.mark.parametrize("folder", ["/wal/", "/manifest/"])
def test_writes_that_are_answered_as_missing_are_no_damage(
    proxy: ObjectProxy, address: str, folder: str
) -> None:
    """The first one ends SlateDB, and the others its tries to open the store again."""
    answers = iter([refusal(404, "NoSuchKey")] * 4)
    with millstream.open(address, options=QUICK) as ms:
        append_until_it_works(ms, b"before", Producer("before", sequence=0))
        first = Producer("p", sequence=0)

        def script(method: str, path: str) -> ObjectAnswer | None:
            is_meant = method == "PUT" and ("/wal/" in path or folder in path)
            return next(answers, None) if is_meant else None

        proxy.script = script
        with pytest.raises(OutcomeUnknown):
            ms.log("a").append(b"doubtful", producer=first)
        append_until_it_works(ms, b"doubtful", first)
        assert next(answers, None) is None
        assert values(ms) == [b"before", b"doubtful"]
    with millstream.open(address) as ms:
        assert values(ms) == [b"before", b"doubtful"]


def test_a_success_with_an_error_inside_is_no_success(proxy: ObjectProxy, address: str) -> None:
    with millstream.open(address, options=QUICK) as ms:
        append_until_it_works(ms, b"before", Producer("before", sequence=0))
        proxy.script = lambda method, _path: (
            refusal(200, "InternalError") if method in WRITES else None
        )
        with pytest.raises(MillstreamError):
            ms.log("a").append(b"doubtful")
        proxy.script = None
        append_until_it_works(ms, b"after", Producer("p", sequence=0))
        found = values(ms)
    assert (found[0], found[-1]) == (b"before", b"after")
    with millstream.open(address) as ms:
        assert values(ms) == found
