"""TLS: an authority and a certificate of our own, made on first start, or the owner's.

    DIR/tls/ca.pem, ca.key             for clients to trust; kept for ten years
    DIR/tls/server.pem, server.key     made anew when it runs out, or is for other names

The files are looked at when connections come, at most once a second, so a certificate that is
replaced is used from then on. One that cannot be read is logged, and the old one stays.
"""

import asyncio
import ipaddress
import logging
import ssl
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from posthouse.server.files import keep_secret

if TYPE_CHECKING:
    from cryptography import x509

_log = logging.getLogger(__name__)

CA, CA_KEY, CERTIFICATE, KEY = "ca.pem", "ca.key", "server.pem", "server.key"
CA_DAYS, DAYS, RENEW_DAYS = 3_650, 397, 30
NAMES = ("localhost", "127.0.0.1", "::1")
_LOOK_SECONDS = 1.0


class Files(NamedTuple):
    certificate: Path
    key: Path


def ensure(folder: Path, names: tuple[str, ...]) -> Files:
    """The authority and a certificate for these names, made where they are not there.

    Raises OSError or ValueError.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    wanted = tuple(dict.fromkeys((*NAMES, *names)))
    files = Files(folder / CERTIFICATE, folder / KEY)
    if not (folder / CA).exists() or not (folder / CA_KEY).exists():
        _make_authority(folder)
        _make_certificate(folder, wanted)
    elif not _is_good(folder, wanted):
        _make_certificate(folder, wanted)
    return files


def _is_good(folder: Path, names: tuple[str, ...]) -> bool:
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization

    try:
        key = serialization.load_pem_private_key((folder / KEY).read_bytes(), None)
        found = x509.load_pem_x509_certificate((folder / CERTIFICATE).read_bytes())
        authority = x509.load_pem_x509_certificate((folder / CA).read_bytes())
        there = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (FileNotFoundError, ValueError, TypeError, x509.ExtensionNotFound):
        return False
    soon = datetime.now(UTC) + timedelta(days=RENEW_DAYS)
    return (
        found.not_valid_after_utc > soon
        and found.public_key() == key.public_key()
        and found.issuer == authority.subject
        and set(there) == set(_alternatives(names))
    )


def _alternatives(names: tuple[str, ...]) -> "list[x509.GeneralName]":
    from cryptography import x509

    found: list[x509.GeneralName] = []
    for name in names:
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            found.append(x509.DNSName(name.encode("idna").decode()))
    return found


def _make_authority(folder: Path) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Posthouse {serial:x}"[:26])])
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
        decipher_only=False,
    )  # fmt: skip
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=CA_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / CA).unlink(missing_ok=True)  # a crash must not leave it beside another's key
    keep_secret(folder / CA_KEY, _pem(key))
    _publish(folder / CA, made)


def _make_certificate(folder: Path, names: tuple[str, ...]) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec, rsa
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    authority = x509.load_pem_x509_certificate((folder / CA).read_bytes())
    signer = serialization.load_pem_private_key((folder / CA_KEY).read_bytes(), None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise ValueError(f"{folder / CA_KEY} is neither an elliptic curve's nor an RSA key")  # noqa: TRY004
    key = ec.generate_private_key(ec.SECP256R1())
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")]))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=DAYS))
        .add_extension(x509.SubjectAlternativeName(_alternatives(names)), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(identifier, critical=False)
        .sign(signer, hashes.SHA256())
    )
    keep_secret(folder / KEY, _pem(key))
    _publish(folder / CERTIFICATE, made)


def _pem(key: object) -> bytes:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _publish(path: Path, certificate: "x509.Certificate") -> None:
    from cryptography.hazmat.primitives.serialization import Encoding

    keep_secret(path, certificate.public_bytes(Encoding.PEM))
    path.chmod(0o644)


def context(files: Files) -> ssl.SSLContext:
    """Raises OSError or ssl.SSLError, also where the key asks for a password: nobody is there."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.load_cert_chain(files.certificate, files.key, "")
    return made


def check(files: Files) -> None:
    """Raises OSError, which names the files, where no connection could be served with them."""
    try:
        context(files)
    except (OSError, ValueError) as error:
        raise OSError(
            f"TLS cannot be served with {files.certificate} and {files.key}: {error}. Both must be"
            " PEM, and the key must have no password."
        ) from None


class Contexts:
    """The context for the next connection. Nothing is made or read before one is wanted."""

    def __init__(self, folder: Path, names: tuple[str, ...], own: Files | None) -> None:
        self._folder = folder
        self._names = names
        self._files = own
        self._making: asyncio.Future[ssl.SSLContext] | None = None
        self._seen: tuple[int, ...] = ()
        self._looked = 0.0

    def get(self) -> "asyncio.Future[ssl.SSLContext]":
        """Raises OSError or ssl.SSLError when it is awaited."""
        if self._making is None or (self._making.done() and self._making.exception()):
            loop = asyncio.get_running_loop()
            self._making = asyncio.ensure_future(loop.run_in_executor(None, self._make))
        elif self._making.done() and time.monotonic() - self._looked > _LOOK_SECONDS:
            self._look_again()
        return asyncio.shield(self._making)

    def _make(self) -> ssl.SSLContext:
        if self._files is None:
            self._files = ensure(self._folder, self._names)
        self._seen, self._looked = _stamps(self._files), time.monotonic()
        return context(self._files)

    def _look_again(self) -> None:
        assert self._files is not None
        assert self._making is not None
        self._looked = time.monotonic()
        try:
            stamps = _stamps(self._files)
            if stamps == self._seen:
                return
            made = context(self._files)
        except (OSError, ssl.SSLError) as error:
            _log.error(
                "The new certificate cannot be used, the old one stays: %s", error,
                extra={"event": "tls.reload"},
            )  # fmt: skip
            return
        self._seen = stamps
        self._making = asyncio.get_running_loop().create_future()
        self._making.set_result(made)
        _log.info("A new certificate is in use.", extra={"event": "tls.reload"})


def _stamps(files: Files) -> tuple[int, ...]:
    return tuple(path.stat().st_mtime_ns for path in files)
