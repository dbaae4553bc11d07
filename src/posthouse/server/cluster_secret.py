"""The secret that the nodes of a cluster share, and the keys that are derived from it.

Every node derives the same keys, so nothing else has to be copied between them.
"""

from hmac import digest

from posthouse.server.config import Config

SECRET_BYTES_MIN = 32


def read_cluster_secret(config: Config) -> bytes:
    """The secret of a cluster; with --dev, where none is given, one that is known to everybody.

    Raises OSError.
    """
    if config.cluster_secret is None:
        return f"the cluster {config.cluster} for development".encode()
    secret = config.cluster_secret.read_bytes().strip()
    if len(secret) < SECRET_BYTES_MIN:
        raise OSError(f"{config.cluster_secret} holds fewer than {SECRET_BYTES_MIN} bytes.")
    return secret


def derive(secret: bytes, purpose: str) -> bytes:
    """A key of 32 bytes for one purpose."""
    return digest(secret, f"posthouse {purpose}".encode(), "sha256")
