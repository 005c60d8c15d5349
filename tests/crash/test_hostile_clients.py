"""Clients that make a server hold memory or time for them: each way at each protocol has a bound.

Every row of `ATTACKS` is one way: not to read, to be slow, to be refused, to repeat. The harness runs it
against a server process for `MILLSTREAM_ATTACK_S` seconds (2 by default; `make faults` has 30), and
promises meanwhile:

- the resident memory of the server grows by no more than the row's bound, however long it lasts;
- `/health`, asked for on another connection, is answered in time;
- connections that must not be kept are gone soon after (the server's deadlines are short here).
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

import millstream
from millstream import framing, wire
from millstream.log import commands as logs
from tests.integration.certificates import make_certificates

pytestmark = [pytest.mark.faults, pytest.mark.slow]

ATTACK_S = float(os.environ.get("MILLSTREAM_ATTACK_S", "2"))
DEADLINE_S = 1.0
SOON_S = 60.0
"""By then a test gives up: only a failure takes so long."""

HEALTH_S_MAX = 5.0
SLOWER_MAX = 20
"""`/health` is answered in that time, or in so many times what it took before the attack."""

MIB = 1024 * 1024
RETAINED_VALUES = 160
RETAINED_BYTES = 60_000


class Place(NamedTuple):
    """A server process, and where it is."""

    process: subprocess.Popen[bytes]
    url: str
    context: ssl.SSLContext | None

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def memory_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("VmRSS")]
        return int(line.split()[1]) * 1024


Sent = Callable[[Place], bytes]
"""What a connection sends first."""


class Attack(NamedTuple):
    """One way to make a server hold something."""

    name: str
    first: Sent
    flood: bytes = b""
    """What is sent again and again, as fast as the server takes it."""
    connections: int = 1
    memory_mib_max: int = 24
    reads: bool = False
    """Whether the client reads what it is told."""
    is_cut: bool = False
    """Whether the server must end these connections, soon after the attack at the latest."""
    tls: bool = False
    plain: bool = False
    """Whether bytes are sent past TLS."""


def get(path: str, *headers: str) -> Sent:
    lines = [f"GET {path} HTTP/1.1", "Host: 127.0.0.1", *headers]
    return lambda place: "\r\n".join([*lines, "", ""]).encode()


def post(path: str, body: bytes, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {size}\r\n\r\n".encode() + body


def sends(data: bytes) -> Sent:
    return lambda place: data


def websocket(path: str, *headers: str) -> Sent:
    return get(
        path,
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        f"Sec-WebSocket-Protocol: {wire.SUBPROTOCOL}",
        *headers,
    )


def framed(*headers: str) -> Sent:
    return get("/socket", "Connection: Upgrade", f"Upgrade: {framing.UPGRADE}", *headers)


def ws_frame(data: bytes, opcode: int = 1) -> bytes:
    """A masked frame; the mask changes nothing."""
    assert len(data) < 126
    return bytes((0x80 | opcode, 0x80 | len(data))) + b"\0\0\0\0" + data


def request(number: int, command: logs.GetBounds) -> bytes:
    return wire.encode_requests([(number, wire.encode_command(command))])


LONG = "x" * 9_000
MANY = [f"X-{n}: y" for n in range(150)]
MESSAGE = b'{"send":[{"type":"chat","data":1}],"n":1}'
OVER_RATE = b'{"send":[' + b",".join([b'{"type":"chat"}'] * 6) + b"]}"

UNADMITTED = [
    Attack("nothing is sent", sends(b""), connections=50, is_cut=True),
    Attack("half a head", sends(b"GET / HTTP/1.1\r\nHost: "), connections=50, is_cut=True),
    Attack(
        "half a body",
        sends(post("/logs/a/records", b'{"value":', 100)),
        connections=50,
        is_cut=True,
    ),
    Attack(
        "a websocket with a long request line",
        websocket(f"/rooms/hall?x={LONG}"),
        connections=50,
        is_cut=True,
    ),
    Attack(
        "a websocket with a long header",
        websocket("/rooms/hall", f"X: {LONG}"),
        connections=50,
        is_cut=True,
    ),
    Attack(
        "a websocket with many headers",
        websocket("/rooms/hall", *MANY),
        connections=50,
        is_cut=True,
    ),
    Attack(
        "a websocket with a body",
        websocket("/rooms/hall", "Content-Length: 10"),
        connections=50,
        is_cut=True,
    ),
    Attack(
        "a websocket with a chunked body",
        websocket("/rooms/hall", "Transfer-Encoding: chunked"),
        connections=50,
        is_cut=True,
    ),
    Attack("a websocket to nowhere", websocket("/nowhere"), connections=50, is_cut=True),
    Attack(
        "an upgrade to something unknown",
        get("/health", "Connection: Upgrade", "Upgrade: other"),
        connections=50,
        is_cut=True,
    ),
    Attack(
        "half of a TLS handshake",
        sends(b"\x16\x03\x01"),
        connections=50,
        is_cut=True,
        tls=True,
        plain=True,
    ),
    Attack("TLS and then nothing", sends(b""), connections=20, is_cut=True, tls=True),
    Attack(
        "TLS and a websocket with a long header",
        websocket("/rooms/hall", f"X: {LONG}"),
        connections=20,
        is_cut=True,
        tls=True,
    ),
]

UNREAD = [
    Attack(
        "answers of requests one after the other",
        sends(b""),
        flood=get("/logs/big/records/0")(None),  # type: ignore[arg-type]
        connections=20,
        is_cut=True,
    ),
    Attack(
        "answers of hot requests",
        sends(b""),
        flood=post("/logs/hot/records", b'{"value":1}'),
        connections=5,
        memory_mib_max=48,
    ),
    Attack("pongs of websocket pings", websocket("/socket"), flood=ws_frame(b"p" * 100, 9)),
    Attack("pongs of pings to a room", websocket("/rooms/hall"), flood=ws_frame(b"p" * 100, 9)),
    Attack("pongs of a room's own pings", websocket("/rooms/hall"), flood=ws_frame(b'{"ping":1}')),
    Attack(
        "pongs of framed pings",
        framed(),
        flood=framing.frame(b"p" * 100, framing.PING),
        is_cut=True,
    ),
    Attack(
        "pongs of framed pings over TLS",
        framed(),
        flood=framing.frame(b"p" * 100, framing.PING),
        is_cut=True,
        tls=True,
    ),
    Attack(
        "retained values over a websocket",
        websocket("/rooms/kept"),
        connections=30,
        memory_mib_max=40,
    ),
    Attack(
        "retained values over TLS",
        websocket("/rooms/kept"),
        connections=10,
        memory_mib_max=40,
        tls=True,
    ),
    Attack(
        "retained values as events",
        get("/rooms/kept?live=sse"),
        connections=30,
        memory_mib_max=40,
        is_cut=True,
    ),
    Attack(
        "a close frame behind what is not read",
        websocket("/rooms/kept"),
        flood=ws_frame(b"\x03\xe8", 8),
        connections=10,
        is_cut=True,
    ),
]

REFUSED = [
    Attack(
        "frames of a room that are no JSON",
        websocket("/rooms/hall"),
        flood=ws_frame(b"{"),
        connections=4,
        reads=True,
        is_cut=True,
    ),
    Attack(
        "the same, unread",
        websocket("/rooms/hall"),
        flood=ws_frame(b"{"),
        connections=4,
        is_cut=True,
    ),
    Attack(
        "messages over a room's rate",
        websocket("/rooms/hall"),
        flood=ws_frame(OVER_RATE),
        connections=4,
        reads=True,
        is_cut=True,
    ),
    Attack(
        "requests without meaning",
        sends(b""),
        flood=post("/logs/a/records", b"{"),
        connections=4,
        reads=True,
        is_cut=True,
    ),
    Attack(
        "requests that are no HTTP",
        sends(b""),
        flood=b"nonsense\r\n\r\n",
        connections=4,
        is_cut=True,
    ),
    Attack(
        "frames of the socket that are none",
        websocket("/socket"),
        flood=ws_frame(b"", 2),
        connections=4,
        is_cut=True,
    ),
    Attack(
        "framed frames that are none",
        framed(),
        flood=framing.frame(b""),
        connections=4,
        is_cut=True,
    ),
    Attack(
        "empty pings",
        websocket("/rooms/hall"),
        flood=ws_frame(b"", 9),
        connections=4,
        reads=True,
    ),
]

REPEATED = [
    Attack(
        "the same request number again",
        framed(),
        flood=framing.frame(request(1, logs.GetBounds("a"))),
        connections=4,
        reads=True,
    ),
    Attack(
        "many who enter at once",
        lambda place: websocket(f"/rooms/crowd?user=u{next(NUMBERS)}")(place),
        connections=150,
        reads=True,
        memory_mib_max=48,
    ),
    Attack(
        "many who enter at once as events",
        lambda place: get(f"/rooms/crowd?live=sse&user=u{next(NUMBERS)}")(place),
        connections=150,
        reads=True,
        memory_mib_max=48,
    ),
]

ATTACKS = [*UNADMITTED, *UNREAD, *REFUSED, *REPEATED]
NUMBERS = iter(range(10**9))


@contextmanager
def started(folder: Path, *, tls: bool) -> Iterator[Place]:
    folder.mkdir()
    program = str(Path(__file__).with_name("impatient.py"))
    command = [sys.executable, program, str(folder / "store.db"), str(DEADLINE_S)]
    context = None
    if tls:
        made = make_certificates(folder / "certificates")
        command += [str(made.certificate), str(made.key)]
        context = ssl.create_default_context(cafile=str(made.ca))
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            place = Place(process, json.loads(process.stdout.readline())["rest"], context)
            fill(folder / "store.db")
            yield place
        finally:
            process.terminate()
            process.wait(30)


def fill(path: Path) -> None:
    """A large record, and a room with many retained values."""
    with millstream.open(path) as ms:
        ms.log("big").append(b"x" * 200_000)
        kept = ms.room("kept")
        kept.specify(retained=["shape"])
        values = [("shape", "x" * RETAINED_BYTES, f"k{n}") for n in range(RETAINED_VALUES)]
        kept.send_many(values)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[bool, Place]]:
    folder = tmp_path_factory.mktemp("attacked")
    with ExitStack() as held:
        yield {
            tls: held.enter_context(started(folder / str(tls), tls=tls)) for tls in (False, True)
        }


class Watch(threading.Thread):
    """Looks at a server while it is attacked: its memory, and how long `/health` takes."""

    def __init__(self, place: Place) -> None:
        super().__init__(daemon=True)
        self._place = place
        self._is_over = threading.Event()
        self.before_bytes = place.memory_bytes()
        self.peak_bytes = 0
        self.slowest_s = 0.0
        self._client = httpx.Client(timeout=SOON_S, verify=place.context or True)
        self.usual_s = max(self._ask_s() for _ in range(5))

    def _ask_s(self) -> float:
        began_s = time.monotonic()
        self._client.get(f"{self._place.url}/health")
        return time.monotonic() - began_s

    def run(self) -> None:
        while not self._is_over.wait(0.05):
            self.slowest_s = max(self.slowest_s, self._ask_s())
            self.peak_bytes = max(self.peak_bytes, self._place.memory_bytes())

    def finish(self) -> None:
        self._is_over.set()
        self.join()
        self._client.close()


class Hostile:
    """One connection of an attack, which never waits for the server."""

    def __init__(self, place: Place, attack: Attack) -> None:
        raw = socket.socket()
        if not attack.reads:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        raw.settimeout(SOON_S)
        raw.connect(("127.0.0.1", place.port))
        self._is_tls = place.context is not None and not attack.plain
        if self._is_tls:
            assert place.context is not None
            raw = place.context.wrap_socket(raw, server_hostname="127.0.0.1")
        self._socket = raw
        self._attack = attack
        raw.sendall(attack.first(place))
        self._piece = attack.flood * max(1, 16_384 // max(1, len(attack.flood)))
        self._left = b""
        self.is_ended = False
        if attack.flood and attack.first(place):
            raw.recv(1)  # it is admitted: what comes before that would not count
        raw.setblocking(False)

    def step(self) -> None:
        """Send as much as the server takes now, and read if this attack reads."""
        if self.is_ended:
            return
        try:
            if self._attack.reads:
                self.read()
            if self._piece:
                self._left = self._left or self._piece
                self._left = self._left[self._socket.send(self._left) :]
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError:
            self.is_ended = True

    def read(self) -> None:
        try:
            while True:
                if not self._socket.recv(65_536):
                    self.is_ended = True
                    return
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass

    def close(self) -> None:
        self._socket.close()


def connections(place: Place) -> int:
    """How many connections the server has, but for the one that asks."""
    with httpx.Client(timeout=SOON_S, verify=place.context or True) as client:
        lines = client.get(f"{place.url}/metrics").text.splitlines()
    (line,) = [line for line in lines if line.startswith("millstream_connections ")]
    return int(float(line.split()[1])) - 1


def eventually(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + SOON_S
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


@pytest.mark.parametrize("attack", [pytest.param(one, id=one.name) for one in ATTACKS])
def test_a_client_holds_no_more_than_its_bound(places: dict[bool, Place], attack: Attack) -> None:
    place = places[attack.tls]
    eventually(lambda: connections(place) == 0)
    watch = Watch(place)
    hostile: list[Hostile] = []
    try:
        watch.start()
        hostile += [Hostile(place, attack) for _ in range(attack.connections)]
        until_s = time.monotonic() + ATTACK_S
        while time.monotonic() < until_s:
            for one in hostile:
                one.step()
            time.sleep(0.001)
        if attack.is_cut:
            keep_up(place, hostile)
    finally:
        watch.finish()
        for one in hostile:
            one.close()
    grown_mib = (watch.peak_bytes - watch.before_bytes) / MIB
    print(f"{attack.name}: {grown_mib:+.1f} MiB, /health {watch.slowest_s:.2f} s", end=" ")
    assert grown_mib <= attack.memory_mib_max
    assert watch.slowest_s <= max(HEALTH_S_MAX, SLOWER_MAX * watch.usual_s)


def keep_up(place: Place, hostile: list[Hostile]) -> None:
    """Go on until the server has ended all of these connections; who reads, reads that."""

    def are_gone() -> bool:
        for one in hostile:
            one.step()
        return connections(place) <= 1  # the watch may have one

    eventually(are_gone)
