"""A start that cannot read who may do what does not begin; nor does it let anybody in instead."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from posthouse.server.tls import ensure
from tests.server.running import running


def tried(*flags: str) -> "subprocess.CompletedProcess[str]":
    """A start that is to fail."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("POSTHOUSE_")}
    command = [sys.executable, "-m", "posthouse.cli", "serve", "--port", "0", *flags]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, env=clean
    )


CONFIGS = {
    "not there": None,
    "a folder": "folder",
    "not YAML": "a: [",
    "a list": "- a",
    "unknown setting": "nonsense: 1",
    "principals are no list": "principals: web",
    "a principal without a name": "principals: [{grants: []}]",
    "a short key": "principals: [{name: web, key: x, grants: []}]",
    "an empty key": "principals: [{name: web, key: '', grants: []}]",
    "an unknown right": "principals: [{name: web, grants: [{rights: [everything]}]}]",
    "grants are a text": "principals: [{name: web, grants: all}]",
    "a binary file": "\0\1\2\ud7ff",
    "a short secret": "jwt_secret: x",
}


@pytest.mark.parametrize("content", CONFIGS.values(), ids=CONFIGS.keys())
def test_a_configuration_that_cannot_be_read_refuses_the_start(
    tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "c.yaml"
    if content == "folder":
        path.mkdir()
    elif content is not None:
        path.write_text(content)
    failed = tried("--data", str(tmp_path / "data"), "--config", str(path))
    assert failed.returncode not in (0, None), failed
    assert "Traceback" not in failed.stderr
    assert "c.yaml" in failed.stderr


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5])


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("name", ["root-key", "seal-key"])
@pytest.mark.parametrize("spoil", [emptied, cut, a_folder])
def test_a_key_file_that_is_no_key_refuses_the_start(
    tmp_path: Path, name: str, spoil: Callable[[Path], None]
) -> None:
    data = tmp_path / "data"
    with running("--data", str(data)):
        pass
    spoil(data / name)
    failed = tried("--data", str(data))
    assert failed.returncode not in (0, None), failed
    assert "Traceback" not in failed.stderr
    assert name in failed.stderr


@pytest.mark.parametrize("spoil", [emptied, cut, a_folder])
@pytest.mark.parametrize("which", ["tls-cert", "tls-key"])
def test_a_certificate_that_is_none_refuses_the_start(
    tmp_path: Path, which: str, spoil: Callable[[Path], None]
) -> None:
    ensure(tmp_path / "made", ())
    files = {"tls-cert": tmp_path / "server.pem", "tls-key": tmp_path / "server.key"}
    for path in files.values():
        path.write_bytes((tmp_path / "made" / path.name).read_bytes())
    spoil(files[which])
    flags = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    failed = tried("--data", str(tmp_path / "other"), *flags)
    assert failed.returncode not in (0, None), failed
    assert "Traceback" not in failed.stderr


def test_without_files_left_nobody_is_let_in_unasked(tmp_path: Path) -> None:
    """However few files the process may open, a request without a key is refused."""
    with running("--data", str(tmp_path / "data"), files_max=40) as broker:
        statuses = set()
        for _ in range(60):
            try:
                statuses.add(broker.call("GET", "/api/v1/namespaces").status)
            except OSError:
                statuses.add(0)
        assert statuses <= {0, 401, 503}
        assert 401 in statuses
