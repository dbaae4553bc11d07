"""Shared access signatures, as Microsoft's documentation says that they are made."""

import hmac
import time
from base64 import b64encode
from hashlib import sha256
from urllib.parse import quote_plus

from tests.dialects.servicebus.bus import KEY, ROOT


def token(resource: str, name: str = ROOT, key: str = KEY, seconds: float = 600) -> str:
    scope, expires = quote_plus(resource), str(int(time.time() + seconds))
    signed = hmac.new(key.encode(), f"{scope}\n{expires}".encode(), sha256).digest()
    signature = quote_plus(b64encode(signed))
    return f"SharedAccessSignature sr={scope}&sig={signature}&se={expires}&skn={name}"
