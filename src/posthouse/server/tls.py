"""TLS: an authority and a certificate of our own, made on first start, or the owner's.

    DIR/tls/ca.pem, ca.key             for clients to trust; kept for ten years
    DIR/tls/server.pem, server.key     made anew when it runs out, or is for other names

The nodes of a cluster have one authority: its key is derived from the secret that they share. Each
makes its own certificate, and verifies the others' when it connects to them.

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
    from cryptography.hazmat.primitives.asymmetric import ec

_log = logging.getLogger(__name__)

CA, CA_KEY, CERTIFICATE, KEY = "ca.pem", "ca.key", "server.pem", "server.key"
CA_DAYS, DAYS, RENEW_DAYS = 3_650, 397, 30
NAMES = ("localhost", "127.0.0.1", "::1")
_LOOK_SECONDS = 1.0
_P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


class Files(NamedTuple):
    certificate: Path
    key: Path


class Authority(NamedTuple):
    """The authority of a cluster, which each of its nodes derives for itself."""

    name: str  # of the cluster
    seed: bytes  # 32 bytes

    @property
    def key(self) -> "ec.EllipticCurvePrivateKey":
        """A number from 1 to the order of the curve less 1, of more bits than that has."""
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        info = b"posthouse authority, secp256r1"
        made = HKDF(hashes.SHA256(), 48, salt=None, info=info).derive(self.seed)
        number = int.from_bytes(made, "big") % (_P256_ORDER - 1) + 1
        return ec.derive_private_key(number, ec.SECP256R1())

    @property
    def subject(self) -> str:
        return f"Posthouse cluster {self.name}"


def ensure(folder: Path, names: tuple[str, ...], authority: Authority | None = None) -> Files:
    """The authority and a certificate for these names, made where they are not there.

    Raises OSError or ValueError.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    wanted = tuple(dict.fromkeys((*NAMES, *names)))
    files = Files(folder / CERTIFICATE, folder / KEY)
    if (
        not (folder / CA).exists()
        or not (folder / CA_KEY).exists()
        or _is_another(folder, authority)
    ):
        _make_authority(folder, authority)
        _make_certificate(folder, wanted)
    elif not _is_good(folder, wanted):
        _make_certificate(folder, wanted)
    return files


def _is_another(folder: Path, authority: Authority | None) -> bool:
    """Whether the authority in the folder is not the cluster's, or will soon be too old."""
    from cryptography import x509

    if authority is None:
        return False
    try:
        found = x509.load_pem_x509_certificate((folder / CA).read_bytes())
    except ValueError:
        return True
    soon = datetime.now(UTC) + timedelta(days=DAYS)
    return found.public_key() != authority.key.public_key() or found.not_valid_after_utc < soon


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
        and _is_signed_by(found, authority)
        and set(there) == set(_alternatives(names))
    )


def _is_signed_by(found: "x509.Certificate", authority: "x509.Certificate") -> bool:
    """An authority that was made anew may have the name of the one before."""
    from cryptography.exceptions import InvalidSignature

    try:
        found.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _alternatives(names: tuple[str, ...]) -> "list[x509.GeneralName]":
    from cryptography import x509

    found: list[x509.GeneralName] = []
    for name in names:
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            found.append(x509.DNSName(name.encode("idna").decode()))
    return found


def _make_authority(folder: Path, authority: Authority | None) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    if authority is not None:
        key, name = authority.key, authority.subject
    else:
        key = ec.generate_private_key(ec.SECP256R1())
        name = f"Posthouse {x509.random_serial_number():x}"[:26]
    (folder / CA).unlink(missing_ok=True)  # a crash must not leave it beside another's key
    keep_secret(folder / CA_KEY, _pem(key))
    _publish(folder / CA, _authority(key, name))


def _authority(key: "ec.EllipticCurvePrivateKey", subject: str) -> "x509.Certificate":
    """The certificate that an authority has given itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import NameOID

    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
        decipher_only=False,
    )  # fmt: skip
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=CA_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


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
    # Servers of NATS show theirs to each other, whichever has connected.
    usage = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
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
        .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
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

    def __init__(
        self,
        folder: Path,
        names: tuple[str, ...],
        own: Files | None,
        authority: Authority | None = None,
    ) -> None:
        self._folder = folder
        self._names = names
        self._files = own
        self._authority = authority
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
            self._files = ensure(self._folder, self._names, self._authority)
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


class LinkTrust:
    """Whom a node of a cluster trusts when it connects to another.

    The cluster's own authority always. Where nodes have certificates of their owner, beside it
    those whom a file names, or else whom the machine trusts.
    """

    def __init__(self, authority: Authority, others: Path | None, *, has_own: bool) -> None:
        self._authority = authority
        self._others = others
        self._has_own = has_own
        self._seen: int | None = None  # when the file was changed
        self._context: ssl.SSLContext | None = None

    async def context(self) -> ssl.SSLContext:
        """Raises OSError or ssl.SSLError."""
        seen = None if self._others is None else self._others.stat().st_mtime_ns
        if self._context is None or seen != self._seen:
            self._context = await asyncio.to_thread(self._make)
            self._seen = seen
        return self._context

    def _make(self) -> ssl.SSLContext:
        from cryptography.hazmat.primitives.serialization import Encoding

        made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        made.minimum_version = ssl.TLSVersion.TLSv1_3
        if self._others is not None:
            made.load_verify_locations(self._others)
        elif self._has_own:
            made.load_default_certs(ssl.Purpose.SERVER_AUTH)
        ours = _authority(self._authority.key, self._authority.subject)
        made.load_verify_locations(cadata=ours.public_bytes(Encoding.PEM).decode())
        return made
