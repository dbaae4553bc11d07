"""A gate before Moto's server, for what that cannot do: be busy, fail in part, give keys that end.

A request is answered here as SQS documents it, or goes on to Moto. Moto tells in XML who is not
allowed, to clients that speak JSON; here this becomes what SQS says.
"""

import http.client
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Refusal = tuple[int, str, str]  # status, code, text
_KEY_ID = re.compile(r"Credential=([^/]+)/")
_XML = re.compile(rb"<Code>(.+?)</Code><Message>(.+?)</Message>")


class Gate:
    def __init__(self, to: int) -> None:
        self.refuse: Callable[[str, Any], Refusal | None] = lambda operation, form: None
        self.asked: list[tuple[str, str]] = []  # operations, and the ids of keys
        self.keys: list[tuple[str, int]] = []  # ids that are given out, and for how many seconds
        gate = self

        class Request(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                operation = self.headers.get("x-amz-target", "").rpartition(".")[2]
                key = _KEY_ID.search(self.headers.get("authorization", ""))
                gate.asked.append((operation, key[1] if key else ""))
                form = json.loads(body) if operation else None
                refusal = gate.refuse(operation, form)
                if refusal is not None:
                    self._refuse(*refusal)
                    return
                if operation and form != json.loads(body):  # it was changed
                    body = json.dumps(form).encode()
                self._pass_on(to, body)

            def do_GET(self) -> None:
                """As the service that gives a container its keys."""
                id, seconds = gate.keys.pop(0)
                until = datetime.now(UTC) + timedelta(seconds=seconds)
                given = {
                    "AccessKeyId": id, "SecretAccessKey": "s", "Token": "t",
                    "Expiration": until.strftime("%Y-%m-%dT%H:%M:%SZ"),
                }  # fmt: skip
                self._answer(200, json.dumps(given).encode())

            def _pass_on(self, port: int, body: bytes) -> None:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
                headers = dict(self.headers.items()) | {"Content-Length": str(len(body))}
                connection.request("POST", self.path, body, headers)
                reply = connection.getresponse()
                data = reply.read()
                connection.close()
                found = _XML.search(data)
                if found is not None:
                    self._refuse(reply.status, found[1].decode(), found[2].decode())
                else:
                    self._answer(reply.status, data, reply.getheader("x-amzn-query-error"))

            def _refuse(self, status: int, code: str, text: str) -> None:
                told = {"__type": f"com.amazonaws.sqs#{code}", "message": text}
                self._answer(status, json.dumps(told).encode())

            def _answer(self, status: int, data: bytes, problem: str | None = None) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/x-amz-json-1.0")
                self.send_header("Content-Length", str(len(data)))
                if problem is not None:
                    self.send_header("x-amzn-query-error", problem)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Request)
        self.port: int = self._server.server_address[1]

    @contextmanager
    def open(self) -> "Iterator[Gate]":
        thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()
