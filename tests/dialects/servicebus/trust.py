"""How clients are made to trust a broker, as `posthouse tls env` says it."""

import json
import subprocess
import sys
from pathlib import Path

from tests.dialects.servicebus.bus import eventually
from tests.server.running import Running


def trusting(broker: Running) -> dict[str, str]:
    """What has to be in a client's environment."""
    flags = broker.process.args
    assert isinstance(flags, list)
    folder = str(flags[flags.index("--data") + 1])
    eventually((Path(folder) / "tls" / "server.pem").exists)
    told = subprocess.run(
        [sys.executable, "-m", "posthouse.cli", "tls", "env", "--json", "--data", folder],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    lines: dict[str, str] = json.loads(told)
    return lines
