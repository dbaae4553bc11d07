"""No secret is in anything that a broker says: logs, metrics, answers, its configuration."""

import base64
import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

from tests.dialects.servicebus.sas import token as signed
from tests.server.running import Running, running

MARK = "c4nary"  # every secret has it
KEY = f"{MARK}-key-of-web-0123456789"
JWT = f"{MARK}-jwt-secret-0123456789-0123456789"
API_KEY = f"{MARK}-api-key-0123456789"
TOKEN = f"{MARK}-vibemq-token"
PASSWORD = f"{MARK}-password"
BODY = f"{MARK}-body"


def a_file(folder: Path) -> Path:
    path = folder / "config.yaml"
    path.write_text(json.dumps({
        "jwt_secret": JWT, "pyqueue_api_key": API_KEY, "auto_create": True,
        "vibemq_superuser": "boss", "vibemq_superuser_password": PASSWORD, "log_level": "debug",
        "principals": [{"name": "web", "key": KEY, "grants": [{"rights": ["send", "listen"]}]}],
    }))  # fmt: skip
    return path


def forms_of(secret: str) -> list[str]:
    """As it may be written."""
    plain = secret.encode()
    return [secret, base64.b64encode(plain).decode().rstrip("="), plain.hex()]


def ask_around(broker: Running) -> str:
    """Asks rightly and wrongly, with secrets wherever they can be put; all that is answered."""
    said = []
    pair = base64.b64encode(f"web:{KEY}".encode()).decode()
    wrong = base64.b64encode(f"web:{KEY}-wrong".encode()).decode()
    for auth in (f"Basic {pair}", f"Basic {wrong}", f"Bearer web:{KEY}", f"Bearer {JWT}",
                 f"SharedAccessSignature sr=x&sig={KEY}&se=9&skn=web", KEY,
                 signed(f"http://localhost:{broker.port}/", KEY, "web")):  # fmt: skip
        for method, path in (
            ("GET", "/api/v1/namespaces/default/queues"), ("GET", "/metrics"), ("GET", "/health"),
            ("POST", "/api/v1/namespaces/default/queues/q/messages"), ("GET", "/feed/status"),
            ("POST", "/q/messages"), ("GET", f"/nowhere/{KEY}?sig={KEY}&key={PASSWORD}"),
            ("POST", "/servicebus/default/queues/q/messages"), ("GET", f"/?token={TOKEN}"),
        ):  # fmt: skip
            body = {"messages": [{"body": BODY}], "password": PASSWORD}
            reply = broker.call(method, path, body, headers={"authorization": auth})
            told = f"{reply.headers} {reply.body.decode(errors='replace')}"
            said.append(told.replace(path, ""))  # who asked knows where
    for data in (
        f"AUTH 9 {API_KEY}\r\n".encode(), f"PUSH 5 {BODY}\r\n".encode(),
        b"AMQP\x03\x01\x00\x00" + f"\0web\0{KEY}".encode(), b"\0\0\0\x20" + TOKEN.encode(),
        f"GET / HTTP/1.1\r\nAuthorization: {KEY}\nbad: \0\r\n\r\n".encode(),
    ):  # fmt: skip
        with socket.create_connection(("127.0.0.1", broker.port)) as raw:
            raw.settimeout(0.5)
            raw.sendall(data)
            with contextlib.suppress(OSError):
                said.append(raw.recv(65_536).decode(errors="replace"))
    return "\n".join(said)


def test_no_secret_is_in_any_output(tmp_path: Path) -> None:
    config = a_file(tmp_path)
    environment = {"POSTHOUSE_VIBEMQ_TOKEN": TOKEN}
    with running(
        "--data", str(tmp_path / "data"), "--config", str(config), environment=environment
    ) as broker:
        said = ask_around(broker)
        arguments = Path(f"/proc/{broker.process.pid}/cmdline").read_text()
        root = (tmp_path / "data" / "root-key").read_text().strip()
    said += arguments + json.dumps(broker.log)
    for form in ("--json", None):
        command = [sys.executable, "-m", "posthouse.cli", "config", "show", "--config", str(config)]
        shown = subprocess.run(
            [*command, *([form] if form else [])], capture_output=True, text=True, check=True,
            env={**os.environ, **environment},
        )  # fmt: skip
        said += shown.stdout + shown.stderr
    for secret in (KEY, JWT, API_KEY, TOKEN, PASSWORD, BODY, root):
        for form in forms_of(secret):
            at = said.find(form)
            assert at < 0, said[max(0, at - 300) : at + 100]


def test_keys_are_not_in_the_data_folder_but_in_their_own_files(tmp_path: Path) -> None:
    with running("--data", str(tmp_path / "data"), "--config", str(a_file(tmp_path))):
        pass
    for path in (tmp_path / "data").rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            for secret in (KEY, JWT, API_KEY, TOKEN, PASSWORD):
                assert secret.encode() not in content, path
