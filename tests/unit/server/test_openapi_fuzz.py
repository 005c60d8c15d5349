"""Schemathesis asks a real server everything that the document allows, and what it does not.

Promises: no 5xx, no status, type or body that is not in the document, whatever is sent.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.generation.hypothesis.builder import (
    HypothesisTestConfig,
    HypothesisTestMode,
    create_test,
)
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.applications import Starlette

from millstream.embedded.session import open_store
from millstream.engine.memory.engine import MemoryEngine
from millstream.server.auth.access import ANYONE_HERE
from millstream.server.core import Core
from millstream.server.docs.endpoints import ENDPOINTS, document_bytes, routes
from millstream.server.settings import Settings
from tests.unit.server.asking import AsSomebody

EXAMPLES = 12
SEED = int(os.environ["MILLSTREAM_SEED"])
SETTINGS = hypothesis.settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None
)
ENDLESS = {"watchStore", "listenToRoom"}
"""Operations that answer without end."""
START_S_MAX = 20
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


class ServerThread(threading.Thread):
    """A server on a free port, in a loop of its own."""

    def __init__(self) -> None:
        super().__init__(name="fuzzed server", daemon=True)
        self.ready = threading.Event()
        self.port = 0
        self.server: uvicorn.Server | None = None

    def run(self) -> None:
        """Serve until told to stop."""
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        core = Core(open_store(MemoryEngine()), Settings(wait_ms_max=1))
        app = AsSomebody(
            Starlette(
                routes=[
                    *routes(core),
                ]
            ),
            ANYONE_HERE,
        )
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            self.port = listening.getsockname()[1]
            config = uvicorn.Config(app, lifespan="off", log_level="critical", http="httptools")
            self.server = uvicorn.Server(config)
            listening.listen()
            self.ready.set()
            await self.server.serve(sockets=[listening])
        await core.close()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Where the server is."""
    thread = ServerThread()
    thread.start()
    assert thread.ready.wait(START_S_MAX)
    yield f"http://127.0.0.1:{thread.port}"
    assert thread.server is not None
    thread.server.should_exit = True
    thread.join(START_S_MAX)
    assert not thread.is_alive()


@schemathesis.serializer("application/x-millstream-batch", "application/msgpack")
def as_bytes(context: schemathesis.SerializationContext, value: object) -> bytes:
    """Packed blocks are bytes; these are hardly ever good ones."""
    if isinstance(value, schemathesis.transport.serialization.Binary):
        return value.data
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


@pytest.fixture(scope="module")
def schema() -> Any:
    """The document, as Schemathesis reads it."""
    options = {"generation": {"mode": "all", "max-examples": EXAMPLES}}
    config = SchemathesisConfig.from_dict(options)
    return schemathesis.openapi.from_dict(json.loads(document_bytes()), config=config)


# Not `@schema.parametrize()`: it gives all its tests one name, of which pytest-xdist runs but one,
# and it thinks out every request of every operation whenever the tests are collected.
@pytest.mark.slow
@pytest.mark.parametrize("name", [one.name for one in ENDPOINTS if one.name not in ENDLESS])
def test_the_server_answers_as_documented(name: str, schema: Any, address: str) -> None:
    (found,) = schema.include(operation_id=name).get_all_operations()

    def ask(case: schemathesis.Case) -> None:
        if name == "getRecord":
            case.headers["accept"] = "application/json"  # else it is the value: any JSON
        case.call_and_validate(base_url=address, checks=CHECKS)

    modes = list(HypothesisTestMode)
    config = HypothesisTestConfig(schema.config, modes, explicit_settings=SETTINGS, seed=SEED)
    create_test(operation=found.ok(), test_func=ask, config=config)()
