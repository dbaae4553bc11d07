"""A dialect that is added through the list alone, and a server that speaks it.

python -m tests.dialects.toy FLAGS

A client says `TOY NAME` and a line end; it is told the greeting that is set, its name, and how many
have come.
"""

import sys
from dataclasses import dataclass
from typing import Any

from posthouse.dialects import known
from posthouse.dialects.connections import ConnectionInfo
from posthouse.dialects.dialect import Dialect, Host, HttpPath, HttpProfile, Reached, Wire
from posthouse.dialects.http import Answer, Request
from posthouse.dialects.settings import as_text, setting

PORT = 4711


@dataclass(frozen=True)
class ToySettings:
    toy_greeting: str = setting("hello", as_text, "what toys are told", "WORD")


class Toys:
    def __init__(self, host: Host, settings: ToySettings) -> None:
        self._host = host
        self.greeting = settings.toy_greeting
        self.come = 0

    def make_peer(self, info: ConnectionInfo) -> "Toy":
        return Toy(self, info)

    async def answer(self, request: Request) -> Answer:
        assert self._host.engine is not None
        return Answer(f"{self.greeting} at {self._host.namespace}".encode())

    async def answer_all(self, request: Request) -> Answer:
        """Everything as it came, which is what signatures are made of."""
        lines = [request.raw_path, request.raw_query, await request.body()]
        lines += [b"%s=%s" % each for each in request.spelled if each[0].startswith(b"X-")]
        return Answer(b"\n".join(lines))


class Toy:
    """One connection."""

    def __init__(self, toys: Toys, info: ConnectionInfo) -> None:
        self._toys = toys
        self._info = info
        self._data = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        if self._data.endswith(b"\n"):
            self._toys.come += 1
            name = self._data.split()[1].decode()
            said = f"{self._toys.greeting} {name} {self._toys.come}\n"
            self._transport.write(said.encode())
            self._data = b""

    def connection_lost(self, exc: Exception | None) -> None:
        self._info.gone()

    def shutdown(self) -> None:
        self._transport.close()


def is_toy(data: bytes) -> bool | None:
    return True if data.startswith(b"TOY ") else (None if b"TOY ".startswith(data) else False)


def welcome(reached: Reached) -> tuple[str, str]:
    return "Toys", f"toy://{reached.host}:{reached.port(PORT)}"


declaration = Dialect(
    "toy",
    ToySettings,
    Toys,
    Wire("toy", is_toy, Toys.make_peer, lambda _: b"TLS!\n"),
    paths=(HttpPath("toys over HTTP", lambda request: request.parts[0] == b"toy", Toys.answer),),
    profile=HttpProfile("toy-http", 8711, "toys alone", Toys.answer_all),
    ports=(PORT,),
    welcome=welcome,
)

if __name__ == "__main__":
    known.DIALECTS = (*known.DIALECTS, declaration)
    from posthouse.cli import main  # the rest is imported behind this

    sys.exit(main(sys.argv[1:]))
