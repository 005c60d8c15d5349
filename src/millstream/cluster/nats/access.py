"""Access to NATS servers: their addresses, credentials and certificates.

The address of a server may contain a user and password, or a token. They are removed from the
address, since a client also connects to servers that it learns from other servers, and all servers
of a NATS accept the same credentials.
"""

from __future__ import annotations

import ssl
from typing import Any
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from millstream.errors import InvalidInput

NATS_PORT = 4222
SCHEMES = ("nats", "tls")
VERSION_MIN = (2, 15)
"""The oldest supported version of a server."""


class ClusterTls(Struct, frozen=True):
    """PEM files for the traffic with NATS servers, and between them."""

    certificate: str = ""
    """The certificate of this machine. A node that runs a NATS server needs it, and its key."""
    key: str = ""
    ca: str = ""
    """The authority that signs the servers' certificates; without it, the system's authorities."""

    @property
    def is_given(self) -> bool:
        """Whether any file is named."""
        return bool(self.certificate or self.key or self.ca)

    def check(self, *, serves: bool) -> None:
        """Raise `InvalidInput` for files that do not belong together; `serves` needs all three."""
        if bool(self.certificate) != bool(self.key):
            raise InvalidInput(
                "TLS needs both a certificate and its key: --cluster-certificate and --cluster-key"
            )
        if serves and self.is_given and not (self.certificate and self.ca):
            raise InvalidInput(
                "NATS servers of nodes know each other by certificates: name --cluster-certificate, "
                "--cluster-key and --cluster-ca, or none of them"
            )

    def context(self) -> ssl.SSLContext:
        """Return the TLS context of a NATS client."""
        try:
            made = ssl.create_default_context(cafile=self.ca or None)
            if self.certificate:
                made.load_cert_chain(self.certificate, self.key)
        except OSError as error:  # an error of TLS is an OSError
            raise InvalidInput(
                f"no TLS with the files of --cluster-ca, --cluster-certificate and --cluster-key: "
                f"{error.strerror or error}"
            ) from error
        return made


class NatsAccess(Struct, frozen=True):
    """Servers and credentials."""

    servers: tuple[str, ...]
    """Addresses as nats://HOST:PORT; a client uses the first reachable server."""
    user: str = ""
    password: str = ""
    token: str = ""
    tls: ClusterTls | None = None
    """None if the servers may use plain text; else a server with plain text is refused."""
    is_tls_first: bool = False
    """Whether connections begin with TLS, so that no byte is sent in plain text."""

    @property
    def place(self) -> str:
        """Return the servers, for messages."""
        return ",".join(self.servers)

    def shown(self) -> dict[str, Any]:
        """Return the credentials under the names of the client library."""
        if self.user:
            return {"user": self.user, "password": self.password}
        return {"token": self.token} if self.token else {}


def parse_nats(text: str, tls: ClusterTls | None = None) -> NatsAccess:
    """Parse `nats://[USER:PASSWORD@|TOKEN@]HOST[:PORT],…`.

    An error does not repeat the address, which may hold a secret.
    """
    servers: list[str] = []
    shown: set[tuple[str, str | None]] = set()
    wants_tls = tls is not None and tls.is_given
    for address in text.split(","):
        try:
            url = urlsplit(address.strip())
            host, port = url.hostname, url.port or NATS_PORT
        except ValueError:
            host, port = None, 0
        if not host or url.scheme not in SCHEMES or url.path.strip("/"):
            raise InvalidInput(
                "--cluster names NATS servers: nats://HOST:PORT or tls://HOST:PORT, several with "
                "commas between; a user and password, or a token, may stand before an @"
            )
        wants_tls = wants_tls or url.scheme == "tls"
        if url.username is not None:
            shown.add((url.username, url.password))
        servers.append(f"nats://[{host}]:{port}" if ":" in host else f"nats://{host}:{port}")
    if len(shown) > 1:
        raise InvalidInput(
            "--cluster names servers of one NATS, which want one user and password, or one token: "
            "its addresses have several"
        )
    user, password = shown.pop() if shown else ("", "")
    return NatsAccess(
        tuple(servers),
        user="" if password is None else unquote(user),
        password=unquote(password or ""),
        token=unquote(user) if password is None else "",
        tls=(tls or ClusterTls()) if wants_tls else None,
    )


def is_new_enough(version: str) -> bool:
    """Whether a server version, such as 2.15.1, is supported."""
    numbers = (number for number in version.split(".")[:2] if number.isdigit())
    return tuple(int(number) for number in numbers) >= VERSION_MIN
