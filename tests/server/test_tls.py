"""TLS on every port, with certificates of our own and of others."""

import asyncio
import contextlib
import os
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from posthouse.server.tls import Authority, Files, LinkTrust, context, ensure
from tests.server.running import Running, development
from tests.waiting import until


def certificate(folder: Path) -> ssl.SSLContext:
    """Trusts the authority in a data folder, when it is there."""
    ca = folder / "tls" / "ca.pem"
    until((folder / "tls" / "server.pem").exists, "the certificate is made")
    return ssl.create_default_context(cafile=str(ca))


@contextmanager
def connected(broker: Running, context: ssl.SSLContext) -> Iterator[ssl.SSLSocket]:
    with (
        socket.create_connection(("localhost", broker.port)) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as wrapped,
    ):
        yield wrapped


def shown(broker: Running, context: ssl.SSLContext) -> bytes | None:
    with connected(broker, context) as wrapped:
        return wrapped.getpeercert(binary_form=True)


def is_shown(broker: Running, context: ssl.SSLContext) -> bool:
    """A certificate that this one trusts."""
    try:
        return shown(broker, context) is not None
    except ssl.SSLCertVerificationError:
        return False


def test_what_clients_are_to_trust_is_told_as_soon_as_a_broker_is_ready(tmp_path: Path) -> None:
    with development(tmp_path) as broker:
        assert broker.call("GET", "/health/ready").status == 200
        assert (tmp_path / "tls" / "ca.pem").exists()
        told = subprocess.run(
            [sys.executable, "-m", "posthouse.cli", "tls", "env", "--data", str(tmp_path)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (told.returncode, told.stderr) == (0, "")
        assert f"export SSL_CERT_FILE={tmp_path / 'tls' / 'ca.pem'}" in told.stdout.splitlines()
        trusting = ssl.create_default_context(cafile=str(tmp_path / "tls" / "ca.pem"))
        assert broker.call("GET", "/health/live", tls=trusting).status == 200


def test_a_broker_that_cannot_have_a_certificate_is_not_ready(tmp_path: Path) -> None:
    (tmp_path / "tls").write_text("in the way")
    with development(tmp_path) as broker:
        told = broker.call("GET", "/health/ready")
        assert told.status == 503
        assert "there is no TLS" in told.json["status"]
        assert broker.call("GET", "/health/live").status == 200


def test_the_same_port_speaks_with_and_without_it(tmp_path: Path) -> None:
    with development(tmp_path, "--tls-name", "broker.test") as broker:
        context = certificate(tmp_path)
        dev = "RootManageSharedAccessKey:SAS_KEY_VALUE"
        assert broker.call("GET", "/metrics", tls=context, key=dev).status == 200
        assert broker.call("GET", "/metrics", tls=context).status == 401
        assert broker.call("GET", "/metrics").status == 200
        with connected(broker, context) as wrapped:
            found = wrapped.getpeercert()
        assert found is not None
        names = {str(each[1]) for each in found["subjectAltName"]}
        assert {"localhost", "broker.test", "127.0.0.1"} <= names


def test_nothing_older_than_1_2_is_spoken(tmp_path: Path) -> None:
    with development(tmp_path) as broker:
        context = certificate(tmp_path)
        context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        with pytest.warns(DeprecationWarning, match="TLS"):
            context.maximum_version = ssl.TLSVersion.TLSv1_1
        context.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.raises(OSError, match=r"(?i)protocol|alert|reset|eof"):
            broker.call("GET", "/health/live", tls=context)
        assert broker.call("GET", "/health/live", tls=certificate(tmp_path)).status == 200


def test_a_certificate_that_is_replaced_is_used_without_a_restart(tmp_path: Path) -> None:
    own = tmp_path / "own"
    files = ensure(own / "tls", ("first.test",))
    flags = ("--tls-cert", str(files.certificate), "--tls-key", str(files.key))
    with development(tmp_path / "data", *flags) as broker:
        context = certificate(own)
        before = shown(broker, context)
        files.certificate.write_text("not a certificate")

        def is_refused() -> bool:
            assert shown(broker, context) == before
            return any(each["event"] == "tls.reload" for each in broker.log)

        until(is_refused, "the broker tells that it goes on with the one before")
        other = ensure(tmp_path / "other" / "tls", ())
        for old, new in zip(files, other, strict=True):
            shutil.copy(new, old)
        until(lambda: is_shown(broker, certificate(tmp_path / "other")), "the new one is shown")


def test_the_authority_stays_and_the_certificate_is_made_for_other_names(tmp_path: Path) -> None:
    ensure(tmp_path, ())
    ca, server = (tmp_path / "ca.pem").read_bytes(), (tmp_path / "server.pem").read_bytes()
    ensure(tmp_path, ())
    assert (tmp_path / "server.pem").read_bytes() == server
    ensure(tmp_path, ("new.test",))
    assert (tmp_path / "server.pem").read_bytes() != server
    assert (tmp_path / "ca.pem").read_bytes() == ca
    assert {each.name: each.stat().st_mode & 0o777 for each in tmp_path.iterdir()} == {
        "ca.pem": 0o644, "ca.key": 0o600, "server.pem": 0o644, "server.key": 0o600,
    }  # fmt: skip


# In the first folder it ends instead of the first rename, in the second instead of the second, ...
CRASH = """
import os, sys
from pathlib import Path
from posthouse.server.tls import ensure

for at, folder in enumerate(sys.argv[1:]):
    left = [at]

    def crash(event, _):
        if event == "os.rename":
            if not left[0]:
                os._exit(9)
            left[0] -= 1

    if os.fork() == 0:
        sys.addaudithook(crash)
        ensure(Path(folder), ("other.test",))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.mark.parametrize(
    ("there", "renames"),
    [
        ((), 4),
        (("ca.pem", "server.pem"), 4),
        (("server.pem", "server.key"), 4),
        (("ca.pem", "ca.key", "server.pem", "server.key"), 2),
    ],
    ids=["a first start", "without the keys", "without the authority", "with other names"],
)
def test_a_crash_between_certificate_and_key_is_made_good(
    tmp_path: Path, there: tuple[str, ...], renames: int
) -> None:
    folders = [tmp_path / str(at) for at in range(renames + 1)]
    for folder in folders:
        ensure(folder, ())
        for path in folder.iterdir():
            if path.name not in there:
                path.unlink()
    command = [sys.executable, "-c", CRASH, *map(str, folders)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert ended == ["9"] * renames + ["0"]
    for folder in folders:
        for name in ("localhost", "other.test"):
            assert is_trusted(ensure(folder, (name,)), folder / "ca.pem", name)


def is_trusted(files: Files, ca: Path, name: str) -> bool:
    """A whole handshake, in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context(files).wrap_bio(to_server, to_client, server_side=True)
    trusting = ssl.create_default_context(cafile=str(ca))
    client = trusting.wrap_bio(to_client, to_server, server_hostname=name)
    for side in (client, server, client, server):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    return client.version() == "TLSv1.3"


def test_the_lines_for_a_shell_make_clients_trust_it(tmp_path: Path) -> None:
    with development(tmp_path) as broker:
        certificate(tmp_path)
        command = [sys.executable, "-m", "posthouse.cli"]
        lines = subprocess.run(
            [*command, "tls", "env", "--data", str(tmp_path)],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        given = dict(line.removeprefix("export ").split("=", 1) for line in lines.splitlines())
        assert {"REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"} <= set(given)
        url = f"https://localhost:{broker.port}"
        environment = {**os.environ, **given, "POSTHOUSE_KEY": "SAS_KEY_VALUE"}
        asked = subprocess.run(
            [*command, "queue", "ls", "--url", url], env=environment, check=False,
            capture_output=True, text=True,
        )  # fmt: skip
        assert asked.returncode == 0, asked.stderr
        code = f"import requests; print(requests.get('{url}/health/live').json())"
        answer = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, **given}, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        assert answer.stdout == "{'status': 'alive'}\n", answer.stderr
    missing = subprocess.run(
        [*command, "tls", "env", "--data", str(tmp_path / "nowhere")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert missing.returncode == 3


def test_the_nodes_of_a_cluster_have_one_authority(tmp_path: Path) -> None:
    authority = Authority("shop", b"s" * 32)
    nodes = [ensure(tmp_path / name, (f"{name}.test",), authority) for name in "ab"]
    for files, name in zip(nodes, "ab", strict=True):
        for folder in "ab":  # whichever node's file a client has
            assert is_trusted(files, tmp_path / folder / "ca.pem", f"{name}.test")
    other = ensure(tmp_path / "c", ("c.test",), Authority("shop", b"t" * 32))
    with pytest.raises(ssl.SSLCertVerificationError):
        is_trusted(other, tmp_path / "a" / "ca.pem", "c.test")


def test_a_broker_that_becomes_a_node_gets_the_clusters_authority(tmp_path: Path) -> None:
    ensure(tmp_path / "a", ("a.test",))
    authority = Authority("shop", b"s" * 32)
    ensure(tmp_path / "b", (), authority)
    files = ensure(tmp_path / "a", ("a.test",), authority)
    assert is_trusted(files, tmp_path / "b" / "ca.pem", "a.test")
    # And another one when the secret is replaced, which has the same name.
    files = ensure(tmp_path / "a", ("a.test",), Authority("shop", b"t" * 32))
    with pytest.raises(ssl.SSLCertVerificationError):
        is_trusted(files, tmp_path / "b" / "ca.pem", "a.test")
    assert is_trusted(files, tmp_path / "a" / "ca.pem", "a.test")


def test_nodes_trust_the_clusters_authority_and_whom_their_owner_names(tmp_path: Path) -> None:
    authority = Authority("shop", b"s" * 32)
    ensure(tmp_path / "node", ("node.test",), authority)
    ensure(tmp_path / "own", ("own.test",))

    async def trusted(others: Path | None, *, has_own: bool) -> set[str]:
        made = await LinkTrust(authority, others, has_own=has_own).context()
        found = made.get_ca_certs()
        return {str(dict(pair[0] for pair in each["subject"])["commonName"]) for each in found}  # type: ignore[misc]

    assert asyncio.run(trusted(None, has_own=False)) == {"Posthouse cluster shop"}
    both = asyncio.run(trusted(tmp_path / "own" / "ca.pem", has_own=True))
    assert len(both) == 2
    assert "Posthouse cluster shop" in both
