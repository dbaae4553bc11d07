"""The addresses of a broker: one, or those of the nodes of a cluster, in the order of their turns.

A node tells its clients the address of the leader. That only changes the order of the addresses
that the configuration names: credentials go nowhere else, whatever a node says.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_addresses(hosts: str, port: int) -> tuple[Address, ...]:
    """Reads `h1,h2:5673,[::1]`, where `port` is that of hosts without one. Raises ValueError."""
    if "," not in hosts and hosts.count(":") > 1 and "[" not in hosts:
        return (Address(hosts, port),)  # of IPv6
    return tuple(_parse(each.strip(), port) for each in hosts.split(","))


def _parse(text: str, port: int) -> Address:
    parts = urlsplit(f"//{text}")
    if not parts.hostname or parts.netloc != text or any(map(str.isspace, text)) or "@" in text:
        raise ValueError(f"{text!r} is no host")
    return Address(parts.hostname, port if parts.port is None else parts.port)


class Turns:
    """The order in which addresses are tried."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._order = list(addresses)

    def __iter__(self) -> Iterator[Address]:
        return iter(list(self._order))

    def __len__(self) -> int:
        return len(self._order)

    def replace(self, addresses: Sequence[Address]) -> None:
        """Takes other addresses where the broker has others; the same ones keep their order."""
        if set(addresses) != set(self._order):
            self._order = list(addresses)

    def lose(self, address: Address) -> None:
        """Puts an address at the end: it does not answer, or its connection was lost."""
        if address in self._order:
            self._order.remove(address)
            self._order.append(address)

    def prefer(self, told: str) -> None:
        """Puts the leader first, by the address that a node tells, if it is among them."""
        for address in self._order:
            if str(address) == told:
                self._order.remove(address)
                self._order.insert(0, address)
                return
