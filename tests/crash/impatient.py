"""A server whose deadlines are short: `python impatient.py PATH DEADLINE_S [SETTINGS]`.

`SETTINGS` is a JSON object of the server's settings. As `millstream serve --json`, it prints where it
is reached, and ends when it is told to.
"""

from __future__ import annotations

import sys

import msgspec

from millstream.server.listen import connection, framed, tls, websocket
from millstream.server.rest import routing
from millstream.server.serving import Serving
from millstream.server.settings import Settings


def main(path: str, deadline_s: str, settings: str = "{}") -> None:
    """Serve a file until a signal."""
    short_s = float(deadline_s)
    connection.HEAD_S = connection.IDLE_S = connection.READ_S = short_s
    connection.PING_S = connection.PONG_S = short_s
    websocket.LOOK_S = framed.LOOK_S = tls.HANDSHAKE_S = routing.BODY_S = short_s
    serving = Serving(path, Settings(port=0, **msgspec.json.decode(settings)))

    def say() -> None:
        sys.stdout.write(msgspec.json.encode({"rest": serving.url}).decode() + "\n")
        sys.stdout.flush()

    serving.run(on_ready=say, with_signals=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
