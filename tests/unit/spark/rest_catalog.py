"""A REST catalog of Iceberg for tests: the requests that pyiceberg sends, answered by a catalog in SQLite."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableRequest

CODES: dict[type[Exception], int] = {
    NoSuchTableError: 404,
    NoSuchNamespaceError: 404,
    TableAlreadyExistsError: 409,
    NamespaceAlreadyExistsError: 409,
    CommitFailedException: 409,
}


@contextmanager
def rest_catalog(folder: Path) -> Iterator[str]:
    """Serve a catalog until the block ends; its address."""
    behind = SqlCatalog("behind", uri=f"sqlite:///{folder}/rest.db", warehouse=str(folder))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.loads(
                self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}"
            )
            path = self.path.partition("?")[0].strip("/").split("/")[1:]
            code = 200
            try:
                told = answer(behind, self.command, path, body)
            except tuple(CODES) as error:
                code = CODES[type(error)]
                told = {
                    "error": {"message": str(error), "type": type(error).__name__, "code": code}
                }
            data = json.dumps(told).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_POST = do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        serving.join()
        behind.close()


def answer(
    behind: SqlCatalog, method: str, path: list[str], body: dict[str, Any]
) -> dict[str, Any]:
    """Answer a request below `/v1`."""
    match method, path:
        case _, ["config"]:
            return {"defaults": {}, "overrides": {}}
        case "POST", ["namespaces"]:
            behind.create_namespace(tuple(body["namespace"]))
            return body
        case _, ["namespaces", space]:
            return {"namespace": [space], "properties": behind.load_namespace_properties(space)}
        case "POST", ["namespaces", space, "tables"]:
            table = behind.create_table(
                (space, body["name"]),
                Schema.model_validate(body["schema"]),
                location=body.get("location"),
                properties=body.get("properties") or {},
            )
            return described(table)
        case "POST", ["namespaces", space, "tables", name]:
            named = {**body, "identifier": {"namespace": [space], "name": name}}
            request = CommitTableRequest.model_validate(named)
            table = behind.load_table((space, name))
            done = behind.commit_table(table, tuple(request.requirements), tuple(request.updates))
            answered: dict[str, Any] = json.loads(done.model_dump_json(by_alias=True))
            return answered
        case _, ["namespaces", space, "tables", name]:
            return described(behind.load_table((space, name)))
    raise NoSuchTableError(f"no request of this kind: {method} {path}")


def described(table: Any) -> dict[str, Any]:
    """Return a table as the catalog answers it."""
    metadata = json.loads(table.metadata.model_dump_json())
    return {"metadata-location": table.metadata_location, "metadata": metadata, "config": {}}
