"""A writer opens its store again, because SlateDB has ended itself, and that fails half-way.

SlateDB calls itself fenced if an object of its own seems to be there already, as after a request
that was carried out twice. So the handle looks itself whether another process writes. Promises:

- No other process has opened the store: the handle is never told `Fenced`, and takes writes again.
- Another process has opened it, also in the middle of such tries: the handle is told `Fenced`.
- Nothing that was acknowledged is lost.
"""

from __future__ import annotations

import threading

import pytest

import millstream
from millstream import Producer, SlateOptions
from millstream.bench.objects import ObjectAnswer, variables
from millstream.engine.slate import writer as slate_writing
from millstream.errors import Fenced, MillstreamError, OutcomeUnknown
from tests.integration.faulty_objects import append_until_it_works, refusal, values
from tests.kit.objects import Fault, ObjectProxy

pytestmark = [pytest.mark.requires("s3"), pytest.mark.faults, pytest.mark.slow]

QUICK = SlateOptions(commit_timeout_s=2.0, read_timeout_s=3.0)
SHORT_S = 2.0
"""How long a handle tries to open the store while the object store refuses."""

PATIENCE_S = 60.0
TAKEN = refusal(412, "PreconditionFailed")


class Halfway:
    """Lets SlateDB end itself once; then each opening comes as far as one object, and no further.

    A new writer first takes an epoch, in `/manifest/`, and then keeps the writer before out, in `/wal/`.
    """

    def __init__(self, *, up_to: str) -> None:
        self._up_to = up_to
        self._ended = self._reached = False
        self._lock = threading.Lock()
        self.stopped = threading.Event()

    def __call__(self, method: str, path: str) -> Fault | ObjectAnswer | None:
        with self._lock:
            if self._reached:
                self.stopped.set()
                return "refuse"
            if not self._ended:
                self._ended = method == "PUT" and "/wal/" in path
                return TAKEN if self._ended else None
            self._reached = method == "PUT" and self._up_to in path
            return None


@pytest.mark.parametrize("up_to", ["/manifest/", "/wal/"])
def test_a_writer_that_opened_half_way_is_not_taken_for_another(
    proxy: ObjectProxy, address: str, up_to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with millstream.open(address, options=QUICK) as ms:
        append_until_it_works(ms, b"before", Producer("before", sequence=0))
        monkeypatch.setattr(slate_writing, "OPEN_S_MAX", SHORT_S)
        for number in range(2):
            proxy.script = script = Halfway(up_to=up_to)
            doubtful = Producer("p", sequence=number)
            with pytest.raises(OutcomeUnknown):
                ms.log("a").append(b"%d" % number, producer=doubtful)
            while not script.stopped.is_set():
                with pytest.raises(MillstreamError):
                    ms.log("a").append(b"%d" % number, producer=doubtful)
            proxy.script = None
            append_until_it_works(ms, b"%d" % number, doubtful)
        assert values(ms) == [b"before", b"0", b"1"]
    with millstream.open(address) as ms:
        assert values(ms) == [b"before", b"0", b"1"]


@pytest.mark.parametrize("up_to", ["/manifest/", "/wal/"])
def test_a_writer_that_opened_half_way_gives_way_to_another(
    server: str, proxy: ObjectProxy, address: str, up_to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with millstream.open(address, options=QUICK) as ms:
        append_until_it_works(ms, b"before", Producer("before", sequence=0))
        monkeypatch.setattr(slate_writing, "OPEN_S_MAX", SHORT_S)
        proxy.script = script = Halfway(up_to=up_to)
        with pytest.raises(OutcomeUnknown):
            ms.log("a").append(b"doubtful")
        assert script.stopped.wait(PATIENCE_S)
        monkeypatch.setattr(slate_writing, "OPEN_S_MAX", PATIENCE_S)
        with variables(server), millstream.open(address) as other:  # past the proxy
            other.log("a").append(b"other")
            proxy.script = None
            with pytest.raises(Fenced):
                append_until_it_works(ms, b"refused", Producer("p", sequence=0))
            other.log("a").append(b"after")
            assert [v for v in values(other) if v != b"doubtful"] == [b"before", b"other", b"after"]
