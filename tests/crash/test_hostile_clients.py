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
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

import millstream
from millstream.command import Command
from millstream.log import commands as logs
from millstream.server.auth.tokens import create_token
from millstream.server.listen.refusals import TOO_MANY
from millstream.wire import commands as wire
from millstream.wire import framing
from tests.integration.certificates import make_certificates
from tests.unit.server.frames import FramedSocket
from tests.unit.server.frames import framed as speaking_frames
from tests.unit.server.talking import Talk, single

pytestmark = [pytest.mark.faults, pytest.mark.slow]

ATTACK_S = float(os.environ.get("MILLSTREAM_ATTACK_S", "2"))
DEADLINE_S = 1.0
USUAL_DEADLINE_S = 20.0
SOON_S = 60.0
"""By then a test gives up: only a failure takes so long."""

HEALTH_S_MAX = 5.0
SLOWER_MAX = 20
"""`/health` is answered in that time, or in so many times what it took before the attack."""

MIB = 1024 * 1024
RETAINED_VALUES = 160
RETAINED_BYTES = 60_000
REQUESTS_PER_SECOND = 200.0

Kind = Literal["open", "tls", "guarded", "rated"]
"""A server that needs no token; the same with TLS; with tokens; with tokens and a rate for each.

The last two have their usual deadlines: connections that they end are not ended for being late."""


class Place(NamedTuple):
    """A server process, and where it is."""

    process: subprocess.Popen[bytes]
    url: str
    context: ssl.SSLContext | None
    tokens: dict[str, str]
    """By name: `watch` sees everything; `websocket` and `frames` may write little."""

    def client(self) -> httpx.Client:
        token = self.tokens.get("watch")
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(timeout=SOON_S, verify=self.context or True, headers=headers)

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
    kind: Kind = "open"
    """The server that is attacked."""
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


def with_token(sent: Callable[..., Sent], *arguments: str) -> Sent:
    """The same, with the token of the hostile client if the server needs one."""

    def first(place: Place) -> bytes:
        token = place.tokens.get("websocket")
        return sent(*arguments, *([f"Authorization: Bearer {token}"] if token else []))(place)

    return first


def ws_frame(data: bytes, opcode: int = 1) -> bytes:
    """A masked frame; the mask changes nothing."""
    head, size = bytes((0x80 | opcode,)), len(data)
    length = bytes((0x80 | size,)) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
    return head + length + b"\0\0\0\0" + data


def request(number: int, command: Command[Any]) -> bytes:
    return wire.encode_requests([(number, wire.encode_command(command))])


LONG = "x" * 9_000
MANY = [f"X-{n}: y" for n in range(150)]
MESSAGE = b'{"send":[{"type":"chat","data":1}],"n":1}'
OVER_ROOM_RATE = b'{"send":[' + b",".join([b'{"type":"chat"}'] * 6) + b"]}"

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
        kind="tls",
        plain=True,
    ),
    Attack("TLS and then nothing", sends(b""), connections=20, is_cut=True, kind="tls"),
    Attack(
        "TLS and a websocket with a long header",
        websocket("/rooms/hall", f"X: {LONG}"),
        connections=20,
        is_cut=True,
        kind="tls",
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
        kind="tls",
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
        kind="tls",
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
        with_token(websocket, "/rooms/hall"),
        flood=ws_frame(b"{"),
        connections=4,
        reads=True,
        is_cut=True,
        kind="guarded",
    ),
    Attack(
        "the same, unread",
        with_token(websocket, "/rooms/hall"),
        flood=ws_frame(b"{"),
        connections=4,
        is_cut=True,
        kind="guarded",
    ),
    Attack(
        "messages over a room's rate",
        with_token(websocket, "/rooms/hall"),
        flood=ws_frame(OVER_ROOM_RATE),
        connections=4,
        reads=True,
        is_cut=True,
        kind="guarded",
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
def started(folder: Path, kind: Kind) -> Iterator[Place]:
    folder.mkdir()
    path = folder / "store.db"
    settings: dict[str, object] = {}
    tokens: dict[str, str] = {}
    context, deadline_s = None, DEADLINE_S
    if kind == "tls":
        made = make_certificates(folder / "certificates")
        settings |= {"certificate": str(made.certificate), "key": str(made.key)}
        context = ssl.create_default_context(cafile=str(made.ca))
    elif kind != "open":
        settings["auth"] = "on"
        deadline_s = USUAL_DEADLINE_S
        little = ["log:write:a*", "room:write:hall"]
        permissions = {"watch": ["store:admin"], "websocket": little, "frames": little}
        with millstream.open(path) as ms:
            tokens = {name: create_token(ms, name, may)[1] for name, may in permissions.items()}
    if kind == "rated":
        settings["requests_per_second"] = REQUESTS_PER_SECOND
    program = str(Path(__file__).with_name("impatient.py"))
    command = [sys.executable, program, str(path), str(deadline_s), json.dumps(settings)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            url = json.loads(process.stdout.readline())["rest"]
            fill(path)
            yield Place(process, url, context, tokens)
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
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Kind], Place]]:
    """Servers, each started when it is first attacked."""
    folder = tmp_path_factory.mktemp("attacked")
    with ExitStack() as held:
        yield cache(lambda kind: held.enter_context(started(folder / kind, kind)))


class Watch(threading.Thread):
    """Looks at a server while it is attacked: its memory, and how long `/health` takes."""

    def __init__(self, place: Place) -> None:
        super().__init__(daemon=True)
        self._place = place
        self._is_over = threading.Event()
        self.before_bytes = place.memory_bytes()
        self.peak_bytes = 0
        self.slowest_s = 0.0
        self._client = place.client()
        self.usual_s = max(self._ask_s() for _ in range(5))

    def _ask_s(self) -> float:
        began_s = time.monotonic()
        # A server may end an idle connection at the moment at which this client uses it again.
        with suppress(httpx.RemoteProtocolError):
            self._client.get(f"{self._place.url}/health")
            return time.monotonic() - began_s
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
    with place.client() as client:
        lines = client.get(f"{place.url}/metrics").text.splitlines()
    (line,) = [line for line in lines if line.startswith("millstream_connections ")]
    return int(float(line.split()[1])) - 1


def eventually(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + SOON_S
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


@pytest.mark.parametrize("attack", [pytest.param(one, id=one.name) for one in ATTACKS])
def test_a_client_holds_no_more_than_its_bound(
    places: Callable[[Kind], Place], attack: Attack
) -> None:
    place = places(attack.kind)
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


# Clients that keep to the protocol: they read, answer pings, and never send more than they may.

REFUSED_REQUESTS: dict[str, tuple[Kind, Command[Any]]] = {
    "denied": ("guarded", logs.Append("b", single(1))),
    "denied reads": ("guarded", logs.GetBounds("b")),
    "invalid": ("guarded", logs.Append("a\0", single(1))),
    "over the rate": ("rated", logs.Append("a", single(1))),
}
PER_FRAME = 100
TALKS = 4


@contextmanager
def talking(place: Place, transport: str) -> Iterator[ClientConnection | FramedSocket]:
    token = f"Bearer {place.tokens[transport]}"
    if transport == "frames":
        with speaking_frames(place, f"Authorization: {token}") as bare:  # type: ignore[arg-type]
            yield bare
        return
    with connect(
        f"ws://127.0.0.1:{place.port}/socket",
        subprotocols=[wire.SUBPROTOCOL],  # type: ignore[list-item]
        additional_headers={"authorization": token},
        compression=None,
        open_timeout=SOON_S,
    ) as socket_:
        yield socket_


class Refused(threading.Thread):
    """Asks the same again and again, until the server ends the connection or the test gives up."""

    def __init__(self, talk: Talk, command: Command[Any]) -> None:
        super().__init__(daemon=True)
        self._talk = talk
        self._frame = [(number, command) for number in range(PER_FRAME)]
        self.answers = 0
        self.ending: tuple[int, str] | None = None

    def run(self) -> None:
        until_s = time.monotonic() + SOON_S
        try:
            while time.monotonic() < until_s:
                self._talk.send(*self._frame)
                self.answers += len(self._talk.answers(PER_FRAME))
        except ConnectionClosed as closed:
            if closed.rcvd is not None:
                self.ending = closed.rcvd.code, closed.rcvd.reason


@pytest.mark.parametrize("transport", ["websocket", "frames"])
@pytest.mark.parametrize("what", REFUSED_REQUESTS)
def test_a_client_that_is_refused_again_and_again_is_let_go(
    places: Callable[[Kind], Place], what: str, transport: str
) -> None:
    kind, command = REFUSED_REQUESTS[what]
    place = places(kind)
    eventually(lambda: connections(place) == 0)
    watch = Watch(place)
    with ExitStack() as held:
        held.callback(watch.finish)
        watch.start()
        sockets = [held.enter_context(talking(place, transport)) for _ in range(TALKS)]
        clients = [Refused(Talk(one), command) for one in sockets]  # type: ignore[arg-type]
        for one in clients:
            one.start()
        for one in clients:
            one.join()
    print(f"{what}: {[one.answers for one in clients]}, /health {watch.slowest_s:.2f} s", end=" ")
    assert {one.ending for one in clients} == {(1008, TOO_MANY)}
    assert watch.peak_bytes - watch.before_bytes <= 24 * MIB
    assert watch.slowest_s <= max(HEALTH_S_MAX, SLOWER_MAX * watch.usual_s)
