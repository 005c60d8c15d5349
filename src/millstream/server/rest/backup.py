"""The backup of the store over HTTP: the client downloads the chunks that its place lacks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec import Struct
from starlette.responses import Response

from millstream.backup.increment import KNOWN_BYTES_MAX, KnownChunks, failure_frame
from millstream.errors import Denied, MillstreamError, TooLarge, Unauthenticated
from millstream.server.auth.need import Need
from millstream.server.backup_downloads import StoreOffer
from millstream.server.rest.ask import Ask
from millstream.server.rest.endpoint import Endpoints
from millstream.server.rest.live import Events

BYTES = "application/octet-stream"
NEED = Need("store", "backup", "", is_explicit=True)
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}

endpoint = Endpoints("store")


class BackupQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """How to make the backup."""

    check: bool = False
    """Whether all rows are checked first; a damaged store is then refused."""


@endpoint("GET /backup")
async def get_backup_offer(ask: Ask) -> StoreOffer:
    """Show which store a backup would hold. Needs `store:backup`."""
    ask.principal.require(NEED)
    return await asyncio.to_thread(ask.core.downloads.offer)


@endpoint("POST /backup", raw=(BYTES,), body_optional=True, media_types=(BYTES,))
async def download_backup(ask: Ask, query: BackupQuery) -> Response:
    """Download a snapshot of the store, without the chunks that the client has.

    The command `millstream backup http://HOST:PORT PLACE` sends this request. The body has the
    first 8 bytes of the hash of each chunk that the client has, sorted. The answer is a stream of
    frames, as `docs/BACKUP.md` describes it. Needs `store:backup`.
    """
    ask.principal.require(NEED)
    if len(ask.data) > KNOWN_BYTES_MAX:
        raise TooLarge(
            f"the body has up to {KNOWN_BYTES_MAX:,} bytes, not {len(ask.data):,}",
            limit=KNOWN_BYTES_MAX,
            size=len(ask.data),
        )
    known_chunks = KnownChunks(ask.data)
    parts = _allowed(ask, ask.core.downloads.begin(known_chunks, checks_rows=query.check))
    return Events(parts, headers=_HEADERS, media_type=BYTES)


async def _allowed(ask: Ask, parts: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Yield parts while the client's token allows it, and the server does not stop."""
    async with aclosing(parts):
        async for part in parts:
            yield part
            if ask.core.closing.is_set():
                yield failure_frame("Overloaded", "the server stops; run the backup again")
                return
            try:
                await ask.core.tokens.freshen_for(ask.principal)
                ask.core.admission.require(ask.principal, NEED)
            except (Unauthenticated, Denied) as error:
                yield failure_frame(type(error).__name__, error.message)
                return
            except MillstreamError:
                pass  # the store does not answer now: check the token again with the next part
