"""A node link: one client's connection, handed by a node of a cluster to the leader. No I/O.

It is a TLS connection to any port of the leader:

    node                                          leader
    PHNODE1, nonce (32)                     -->
                                            <--   nonce (32)
    proof (32), length (2), client          -->
                                            <--   verdict (1), proof (32)
    length (4), bytes; ...; 0               -->
                                            <--   bytes as they are

A proof is an HMAC with a key that is derived from the cluster's secret, over the direction, both
nonces and what is told with it. The node tells, in JSON, the client's address, and the address that
it has dialled to reach the leader: a leader takes only what was meant for it, so nobody can stand
between the two and pass proofs on. The client's bytes leave the node when the leader has shown its
proof, and not before.

The bytes of the client come in frames, so that its end of input can be told: a length of 0.
"""

import ipaddress
from enum import IntEnum
from hmac import compare_digest, digest

import msgspec

MAGIC = b"PHNODE1"
NONCE_BYTES = PROOF_BYTES = 32
CLIENT_BYTES_MAX = 1_024
FRAME_BYTES_MAX = 16 << 20
END_OF_INPUT = bytes(4)
_HELLO_BYTES = len(MAGIC) + NONCE_BYTES
_BY_NODE, _BY_LEADER = b"posthouse link, node\0", b"posthouse link, leader\0"


class BadLink(Exception):
    """The other side does not know the secret, or does not keep to the protocol."""


class Verdict(IntEnum):
    WELCOME = 0
    NOT_LEADER = 1  # this node does not lead, or not any more
    FULL = 2  # there is no room for this client, or it may not come


class RelayedClient(msgspec.Struct, frozen=True):
    """A client as the node that it has connected to knows it."""

    address: str
    tls: bool
    to: str  # the leader's address, as the node has dialled it
    node: str = ""  # that tells it
    http_profile: str = ""  # for which the client's port is declared


class NodeEnd:
    """The end of the node that has the client."""

    def __init__(self, key: bytes, client: RelayedClient, nonce: bytes) -> None:
        self._key = key
        self._told = msgspec.json.encode(client)
        self._nonce = nonce
        self._nonces = b""
        self._come = b""
        self.verdict: Verdict | None = None
        self.rest = b""  # behind the handshake: for the client

    def begin(self) -> bytes:
        return MAGIC + self._nonce

    def receive(self, data: bytes) -> bytes:
        """Takes what the leader says, and returns what to answer. Raises BadLink."""
        self._come += data
        answer = b""
        if not self._nonces and len(self._come) >= NONCE_BYTES:
            self._nonces = self._nonce + self._come[:NONCE_BYTES]
            self._come = self._come[NONCE_BYTES:]
            length = len(self._told).to_bytes(2, "big")
            answer = _proof(self._key, _BY_NODE, self._nonces, self._told) + length + self._told
        if self._nonces and len(self._come) > PROOF_BYTES:
            verdict, proof = self._come[:1], self._come[1 : 1 + PROOF_BYTES]
            if not compare_digest(proof, _proof(self._key, _BY_LEADER, self._nonces, verdict)):
                raise BadLink("it does not know the cluster's secret")
            try:
                self.verdict = Verdict(verdict[0])
            except ValueError:
                raise BadLink("its verdict is unknown") from None
            self.rest, self._come = self._come[1 + PROOF_BYTES :], b""
        return answer


class LeaderEnd:
    """The end of the node that leads."""

    def __init__(self, key: bytes, nonce: bytes) -> None:
        self._key = key
        self._nonce = nonce
        self._nonces = b""
        self._come = b""
        self.client: RelayedClient | None = None  # once the node has proved that it is one

    def receive(self, data: bytes) -> bytes:
        """Takes what the node says, and returns what to answer. Raises BadLink."""
        self._come += data
        answer = b""
        if not self._nonces and len(self._come) >= _HELLO_BYTES:
            if not self._come.startswith(MAGIC):
                raise BadLink("it is no link")
            self._nonces = self._come[len(MAGIC) : _HELLO_BYTES] + self._nonce
            self._come = self._come[_HELLO_BYTES:]
            answer = self._nonce
        if self._nonces and len(self._come) >= PROOF_BYTES + 2:
            proof, told = self._come[:PROOF_BYTES], self._come[PROOF_BYTES + 2 :]
            length = int.from_bytes(self._come[PROOF_BYTES : PROOF_BYTES + 2], "big")
            if length > CLIENT_BYTES_MAX or len(told) > length:
                raise BadLink("it says too much")
            if len(told) == length:
                if not compare_digest(proof, _proof(self._key, _BY_NODE, self._nonces, told)):
                    raise BadLink("it does not know the cluster's secret")
                self.client = _client(told)
        return answer

    def answer(self, verdict: Verdict) -> bytes:
        said = bytes([verdict])
        return said + _proof(self._key, _BY_LEADER, self._nonces, said)


def _proof(key: bytes, direction: bytes, nonces: bytes, told: bytes) -> bytes:
    """The nonces have a fixed length, so no two of these texts are equal by chance of a cut."""
    return digest(key, direction + nonces + told, "sha256")


def _client(told: bytes) -> RelayedClient:
    """Raises BadLink."""
    try:
        client = msgspec.json.decode(told, type=RelayedClient)
        ipaddress.ip_address(client.address.partition("%")[0])
    except (msgspec.MsgspecError, ValueError):
        raise BadLink("what it tells of the client cannot be read") from None
    if not client.address.isprintable():
        raise BadLink("what it tells of the client cannot be read")
    return client


def is_link(data: bytes) -> bool | None:
    """Whether a connection that begins with these bytes is a node link; None: not known yet."""
    if len(data) >= len(MAGIC):
        return data.startswith(MAGIC)
    return None if MAGIC.startswith(data) else False


def frame(data: bytes) -> bytes:
    """Bytes of the client as they go over the link; not more than FRAME_BYTES_MAX."""
    return len(data).to_bytes(4, "big") + data


class Unframer:
    """Takes the frames of a client's bytes apart. It keeps no more than a part of a length."""

    def __init__(self) -> None:
        self._left = 0  # of the frame that has begun
        self._length = b""  # as far as it has come
        self.is_over = False  # the client says no more

    def feed(self, data: bytes) -> bytes:
        """Returns the client's bytes. Raises BadLink."""
        if len(data) <= self._left:
            self._left -= len(data)
            return data
        found: list[bytes] = []
        at = 0
        while at < len(data):
            if self.is_over:
                raise BadLink("there is more behind the end")
            if self._left:
                found.append(data[at : at + self._left])
                at += len(found[-1])
                self._left -= len(found[-1])
                continue
            missing = 4 - len(self._length)
            self._length += data[at : at + missing]
            at += missing
            if len(self._length) == 4:
                self._left = int.from_bytes(self._length, "big")
                self._length = b""
                self.is_over = not self._left
                if self._left > FRAME_BYTES_MAX:
                    raise BadLink("a frame is too large")
        return b"".join(found)
