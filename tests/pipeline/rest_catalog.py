"""A REST catalog, as small as can be: PyIceberg's SQLite catalog behind Iceberg's protocol."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchTableError
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableRequest, Table


@contextmanager
def rest_catalog(folder: Path, token: str) -> Iterator[str]:
    """Serves a catalog for those who have the token; gives its URL."""
    where = {"uri": f"sqlite:///{folder}/rest.db", "warehouse": f"file://{folder}"}
    catalog = SqlCatalog("behind", **where)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            match self._asked():
                case ["config"]:
                    self._answer({"defaults": {}, "overrides": {}})
                case ["namespaces", space, "tables", name]:
                    try:
                        self._answer(_told(catalog.load_table((space, name))))
                    except NoSuchTableError as error:
                        self._refuse(404, error)
                case _:
                    self._refuse(401, PermissionError("No token."))

        def do_POST(self) -> None:
            said = self.rfile.read(int(self.headers["content-length"]))
            match self._asked():
                case ["namespaces"]:
                    try:
                        catalog.create_namespace(tuple(json.loads(said)["namespace"]))
                        self._answer(json.loads(said))
                    except NamespaceAlreadyExistsError as error:
                        self._refuse(409, error)
                case ["namespaces", space, "tables"]:
                    form = json.loads(said)
                    assert form["stage-create"]
                    staged = catalog._create_staged_table(
                        (space, form["name"]), Schema.model_validate(form["schema"]),
                        properties=form["properties"],
                    )  # fmt: skip
                    self._answer(_told(staged))
                case ["namespaces", space, "tables", name]:
                    change = CommitTableRequest.model_validate_json(said)
                    table: Any = SimpleNamespace(name=lambda: (space, name))
                    catalog.commit_table(table, change.requirements, change.updates)
                    self._answer(_told(catalog.load_table((space, name))))
                case _:
                    self._refuse(401, PermissionError("No token."))

        def _asked(self) -> list[str]:
            if self.headers["authorization"] != f"Bearer {token}":
                return []
            return self.path.partition("?")[0].removeprefix("/v1/").split("/")

        def _answer(self, form: Any, status: int = 200) -> None:
            content = json.dumps(form).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def _refuse(self, status: int, error: Exception) -> None:
            said = {"message": str(error), "type": type(error).__name__, "code": status}
            self._answer({"error": said}, status)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def _told(table: Table) -> Any:
    metadata = json.loads(table.metadata.model_dump_json())
    return {"metadata-location": table.metadata_location, "metadata": metadata, "config": {}}
