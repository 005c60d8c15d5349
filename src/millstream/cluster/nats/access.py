"""How a node is known to NATS servers, and they to it: addresses, credentials, certificates.

User and password, or a token, may stand in the address of a server. They are taken out of it, since
a client also connects to servers that others told it of, and all servers of one NATS want the same.
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
"""Of the servers."""


class ClusterTls(Struct, frozen=True):
    """PEM files for the traffic with NATS servers, and between them."""

    certificate: str = ""
    """Of this machine; with its key. A node that runs a NATS server needs both."""
    key: str = ""
    ca: str = ""
    """Who signs the certificates of the others; without it, those that the system trusts."""

    @property
    def is_given(self) -> bool:
        """Whether there is anything to encrypt with."""
        return bool(self.certificate or self.key or self.ca)

    def check(self, *, serves: bool) -> None:
        """Raises `InvalidInput` for files that do not belong together; `serves` needs all three."""
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
        """What a client of NATS connects with."""
        try:
            made = ssl.create_default_context(cafile=self.ca or None)
            if self.certificate:
                made.load_cert_chain(self.certificate, self.key)
        except OSError as error:  # an error of TLS is one
            raise InvalidInput(
                f"no TLS with the files of --cluster-ca, --cluster-certificate and --cluster-key: "
                f"{error.strerror or error}"
            ) from error
        return made


class NatsAccess(Struct, frozen=True):
    """Servers, and what is shown to them."""

    servers: tuple[str, ...]
    """As nats://HOST:PORT; the first that can be reached is used."""
    user: str = ""
    password: str = ""
    token: str = ""
    tls: ClusterTls | None = None
    """None if the servers may speak plainly; else a server that does so is refused."""
    is_tls_first: bool = False
    """Whether servers begin with TLS, so that nothing at all is said plainly before."""

    @property
    def place(self) -> str:
        """The servers, for messages."""
        return ",".join(self.servers)

    def shown(self) -> dict[str, Any]:
        """Credentials, by the names that the client library has for them."""
        if self.user:
            return {"user": self.user, "password": self.password}
        return {"token": self.token} if self.token else {}


def parse_nats(text: str, tls: ClusterTls | None = None) -> NatsAccess:
    """The servers of `nats://[USER:PASSWORD@|TOKEN@]HOST[:PORT],…`.

    An address is not repeated in an error: it may hold a secret.
    """
    servers: list[str] = []
    shown: set[tuple[str, str | None]] = set()
    wants_tls = tls is not None and tls.is_given
    for one in text.split(","):
        try:
            parts = urlsplit(one.strip())
            host, port = parts.hostname, parts.port or NATS_PORT
        except ValueError:
            host, port = None, 0
        if not host or parts.scheme not in SCHEMES or parts.path.strip("/"):
            raise InvalidInput(
                "--cluster names NATS servers: nats://HOST:PORT or tls://HOST:PORT, several with "
                "commas between; a user and password, or a token, may stand before an @"
            )
        wants_tls = wants_tls or parts.scheme == "tls"
        if parts.username is not None:
            shown.add((parts.username, parts.password))
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
    """Whether a server of a version, such as 2.15.1, can be used."""
    numbers = (part for part in version.split(".")[:2] if part.isdigit())
    return tuple(int(part) for part in numbers) >= VERSION_MIN
