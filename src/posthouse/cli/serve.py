"""Running the broker, and showing how it would be run."""

import argparse
import json
import os
import sys
import time
from dataclasses import fields
from pathlib import Path

from posthouse.cli.codes import FAILED, NOT_FOUND, OK, USAGE, fail, say
from posthouse.server.config import SETTINGS, BadConfig, Config, Port, load
from posthouse.store.opening import StoreUrl


def serve(options: argparse.Namespace) -> int:
    try:
        config = _config(options)
    except _NoFile as error:
        return fail(str(error), NOT_FOUND)
    except BadConfig as error:
        return fail(str(error), USAGE)
    from posthouse.server.log import held_back, set_up
    from posthouse.server.serve import run, say_on_terminal

    set_up(config.log, config.log_level, colour="NO_COLOR" not in os.environ)
    try:
        if not (sys.stdout.isatty() and sys.stderr.isatty()):
            return run(config, say_on_terminal)
        with held_back() as release:  # on a terminal people read how to go on, before the log

            def welcome(text: str) -> None:
                say_on_terminal(text)
                release()

            return run(config, welcome)
    except OSError as error:
        return fail(str(error), FAILED)


def config_show(options: argparse.Namespace) -> int:
    try:
        config = _config(options)
    except _NoFile as error:
        return fail(str(error), NOT_FOUND)
    except BadConfig as error:
        return fail(str(error), USAGE)
    shown = {name: _shown(config, name) for name in SETTINGS}
    origins = {name: config.origins.get(name, "default") for name in SETTINGS}
    declared = {each.name: getattr(config.declared, each.name) for each in fields(config.declared)}
    named = {name: [_name(each) for each in some] for name, some in declared.items() if some}
    if options.json:
        settings = {name: {"value": shown[name], "origin": origins[name]} for name in SETTINGS}
        say(json.dumps({"settings": settings, "declared": named}))
        return OK
    width = max(map(len, SETTINGS))
    for name in SETTINGS:
        say(f"{name:<{width}}  {_text(shown[name]):<36}  {origins[name]}")
    for name, some in named.items():
        say(f"{name:<{width}}  {', '.join(some):<36}  {config.config}")
    return OK


def _config(options: argparse.Namespace) -> Config:
    """Raises BadConfig, _NoFile."""
    flags = {name: getattr(options, name) for name in SETTINGS if not SETTINGS[name].secret}
    named = options.config or os.environ.get("POSTHOUSE_CONFIG")
    if named:
        _check_file("config", Path(named).expanduser())
    config = load(flags, os.environ)
    for name, setting in SETTINGS.items():
        path = config.value(name)
        if setting.metavar == "FILE" and isinstance(path, Path):
            _check_file(name, path)
    return config


class _NoFile(Exception):
    """A setting names a file that does not exist."""


def _check_file(name: str, path: Path) -> None:
    """Raises _NoFile."""
    if not path.exists():
        raise _NoFile(f"There is no file {path}, which {name} names; check the name.")


def _shown(config: Config, name: str) -> object:
    value = config.value(name)
    return "(secret)" if SETTINGS[name].secret and value is not None else _plain(value)


def _plain(value: object) -> object:
    if isinstance(value, Path | StoreUrl):
        return str(value)
    if isinstance(value, Port):
        return f"{value.number}={value.http_profile}" if value.http_profile else value.number
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _text(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    return "-" if value is None else str(value)


def _name(declared: object) -> str:
    """The name of something declared; a principal's key must not be shown."""
    return declared if isinstance(declared, str) else str(getattr(declared, "name", declared))


_CA_SECONDS = 10.0  # that a broker may take to make its authority; a start takes about one


def _comes(ca: Path, data: Path) -> bool:
    """Whether the authority is there, or will be: a broker is ready before it has made one."""
    end = time.monotonic() + _CA_SECONDS
    while not ca.exists():
        if not data.exists() or time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def tls_env(options: argparse.Namespace) -> int:
    from shlex import quote

    ca = (options.data / "tls" / "ca.pem").absolute()
    if not _comes(ca, options.data):
        return fail(f"There is no {ca}; it is made when a broker runs on that folder.", NOT_FOUND)
    names = ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "POSTHOUSE_CA")
    lines = {name: str(ca) for name in names}
    if options.json:
        say(json.dumps(lines))
    else:
        say("\n".join(f"export {name}={quote(value)}" for name, value in lines.items()))
    return OK
