"""What goes over the wire between a client and the broker, listened to on the way."""

import socket
import threading
from contextlib import suppress
from types import TracebackType


class Tap:
    """Passes one connection on to a port, and keeps what was said in either direction."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.said = bytearray()  # by the client
        self.heard = bytearray()  # by it
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> "Tap":
        self._start(self._accept)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in (self._listening, *self._sockets):
            each.close()

    def _start(self, work: object, *given: object) -> None:
        assert callable(work)
        thread = threading.Thread(target=work, args=given, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client = self._listening.accept()[0]
                broker = socket.create_connection(("127.0.0.1", self._to))
                self._sockets += [client, broker]
                self._start(self._pass_on, client, broker, self.said)
                self._start(self._pass_on, broker, client, self.heard)

    def _pass_on(self, source: socket.socket, target: socket.socket, kept: bytearray) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                kept += data
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
