"""Stores on Google's and on Azure's object storage: `gs://`, as `google` imitates it, and `az://`, on Azurite.

Promises:

- Every view works there as on a file, is there when the store is opened again, and passes the doctor.
- Of two writers one is fenced, and a reader follows the other.
- A standby takes over from a server that was killed, and nothing that was acknowledged is lost.
- An object store that ignores conditions is refused, with the name of the test that failed.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

import millstream
from millstream import SlateOptions
from millstream.bench.objects import BUCKET, object_server
from millstream.bench.server_program import served
from millstream.doctor import examine
from millstream.errors import CannotOpen, Fenced, MillstreamError
from tests.integration.azurite import azurite
from tests.integration.google import GoogleFront

pytestmark = [pytest.mark.requires("s3"), pytest.mark.slow]

_NUMBERS = count()


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    with object_server() as address:
        yield address


@pytest.fixture
def google(moto: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[GoogleFront]:
    with GoogleFront(moto) as front:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", front.address)
        yield front
        assert front.conditions > 0


@pytest.fixture(scope="module")
def azure() -> Iterator[str]:
    with azurite(BUCKET) as address:
        yield address


@pytest.fixture(params=["gs", pytest.param("az", marks=pytest.mark.requires("azurite"))])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a store that is not there yet."""
    if request.param == "gs":
        request.getfixturevalue("google")
    else:
        monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
        monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", request.getfixturevalue("azure"))
    return f"{request.param}://{BUCKET}/store-{next(_NUMBERS)}"


def test_every_view_is_there_when_it_is_opened_again(place: str) -> None:
    with millstream.open(place) as ms:
        log = ms.log("orders")
        log.append_many([b"%d" % number * 50 for number in range(1_000)])
        jobs = ms.queue("jobs", sources=["orders"], start="earliest")
        jobs.ack(jobs.claim(5))
        ms.room("hall").send("note", {"text": "hello"})
        ms.fold()
        assert ms.stats()["objects"] > 0
    with millstream.open(place, create=False) as ms:
        assert [record.value[:4] for record in ms.log("orders").read()][999] == b"9999"
        assert [message.offset for message in ms.queue("jobs").claim(2)] == [5, 6]
    report = examine(place)
    assert report.healthy, report.problems


def test_the_second_writer_fences_the_first_and_a_reader_follows_it(place: str) -> None:
    first = millstream.open(place, options=SlateOptions(follow_s=0.0))
    first.log("a").append(b"first")
    reader = millstream.open(place, mode="r", options=SlateOptions(follow_s=0.0))
    with millstream.open(place) as second, reader:
        told: type[MillstreamError] | None = None
        while told is not Fenced:
            with pytest.raises(MillstreamError) as refused:
                first.log("a").append(b"never")
            told = refused.type
        assert second.log("a").append(b"second") == 1
        assert [record.value for record in reader.log("a").read()] == [b"first", b"second"]
        first.close()


@pytest.mark.crash
def test_a_standby_takes_over_what_was_acknowledged(place: str) -> None:
    with served(place) as first, served(place, "--standby") as second:
        with millstream.open(first.url()) as ms:
            jobs = ms.queue("jobs", sources=["orders"], start="earliest")
            for number in range(10):
                ms.log("orders").append(b"%d" % number)
            jobs.ack(jobs.claim(4))
        second.await_said("waiting for the lease")
        first.kill()
        with millstream.open(second.url()) as ms:
            found = [int(record.value) for record in ms.log("orders").read()]
            assert found == list(range(10))
            assert [int(message.value) for message in ms.queue("jobs").claim(10)] == found[4:]


def test_an_imitation_of_googles_that_ignores_conditions_is_refused(
    moto: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with GoogleFront(moto, honours_conditions=False) as front:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", front.address)
        with pytest.raises(CannotOpen, match="put_if_absent") as refused:
            millstream.open(f"gs://{BUCKET}/refused")
        assert refused.value.test == "put_if_absent"
