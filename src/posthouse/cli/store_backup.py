"""`posthouse store backup` and `posthouse store restore`."""

import argparse
import hmac
import json
import secrets
import ssl
import zlib
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from posthouse.cli.client import Client, Failure
from posthouse.cli.codes import NOT_FOUND, OK, USAGE, fail, say
from posthouse.cli.show import Progress
from posthouse.cli.store import told

if TYPE_CHECKING:
    from posthouse.server.folder_client import Peer
    from posthouse.store.folder_copy import FolderFile, Listing

KEYS = ("root-key", "seal-key")  # in a data folder
_KEY_BYTES_MAX = 4096


@told
def backup(options: argparse.Namespace) -> int:
    to: Path = options.to
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        return fail(f"{to} is not empty; name a folder that is not there.", USAGE)
    if options.data is None:
        try:
            peer = _peer(options)
        except Failure as failure:
            return fail(str(failure), failure.code)
        return _say(options, _back_up_broker(peer, to), [], to)
    if not options.data.is_dir():
        return fail(f"There is no folder {options.data}; check the name.", NOT_FOUND)
    listing = _back_up_folder(options.data, to)
    if not listing.files:
        to.rmdir()
        return fail(f"{options.data} holds no journal; check the name.", NOT_FOUND)
    keys = _copy_keys(options.data, to)
    _complete(to, listing, keys)
    return _say(options, listing, keys, to)


def _back_up_folder(folder: Path, to: Path) -> "Listing":
    """Raises StoreError or OSError."""
    from posthouse.store.disk import Disk
    from posthouse.store.folder_copy import hold_files

    hold = hold_files(Disk(), folder, secrets.token_hex(8))
    try:
        return _copied(hold, hold.listing, to)
    finally:
        hold.release()


def _back_up_broker(peer: "Peer", to: Path) -> "Listing":
    """Raises StoreError or OSError."""
    from posthouse.server.folder_client import PeerFolder

    source = PeerFolder(peer)
    try:
        listing = _copied(source, source.listing, to)
    finally:
        source.release()
    _complete(to, listing, [])
    return listing


def _copied(source: object, listing: "Listing", to: Path) -> "Listing":
    """The list of what was copied, with checksums."""
    from posthouse.store.folder_copy import Listing, copy_files

    progress = Progress("copied bytes")
    try:
        files = copy_files(source, listing, to, progress.show)  # type: ignore[arg-type]
    finally:
        progress.end()
    return Listing(listing.number, listing.end, files)


def _copy_keys(folder: Path, to: Path) -> "list[FolderFile]":
    from posthouse.server.files import keep_secret
    from posthouse.store.folder_copy import FolderFile

    found = []
    for name in KEYS:
        if (folder / name).is_file():
            content = _key(folder / name)
            keep_secret(to / name, content)
            found.append(FolderFile(name, len(content), zlib.crc32(content)))
    return found


def _key(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_KEY_BYTES_MAX)


def _complete(to: Path, listing: "Listing", keys: "list[FolderFile]") -> None:
    from posthouse.store.folder_copy import write_manifest

    write_manifest(to, listing, listing.files, keys)


def _peer(options: argparse.Namespace) -> "Peer":
    """Raises Failure."""
    from posthouse.server.folder_client import Peer

    url, key, ca = Client.where(options)
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        raise Failure(f"{url} is not an address like https://host:5671.", USAGE) from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Failure(f"{url} is not an address like https://host:5671.", USAGE)
    context = None
    if parts.scheme == "https":
        try:
            context = ssl.create_default_context(cafile=ca)
        except OSError as error:
            raise Failure(f"{ca} holds no certificates: {error}.", USAGE) from None
    return Peer(parts.hostname, port, key, context)


def _say(
    options: argparse.Namespace, listing: "Listing", keys: "list[FolderFile]", to: Path
) -> int:
    size = sum(file.size for file in listing.files)
    if options.json:
        say(json.dumps({
            "folder": str(to), "frame": listing.number, "end": listing.end, "bytes": size,
            "files": len(listing.files), "keys": [key.name for key in keys],
        }))  # fmt: skip
        return OK
    say(f"{to} is a backup of all up to frame {listing.number}: {len(listing.files)} files, {size}"
        " bytes. Every frame and snapshot in it was checked.")  # fmt: skip
    if keys:
        say(f"It holds the keys {' and '.join(key.name for key in keys)}: keep it like a key.")
    else:
        say("It holds no keys: keep root-key and seal-key of the broker, or the secret of its"
            " cluster, apart.")  # fmt: skip
    return OK


@told
def restore(options: argparse.Namespace) -> int:
    from posthouse.server.host import make_folder
    from posthouse.store.disk import Disk
    from posthouse.store.file import LOCK
    from posthouse.store.folder_copy import (
        ARRIVING,
        Backup,
        check_unused,
        copy_files,
        finish_arrival,
        read_manifest,
        replace_journal,
    )

    source, folder, disk = options.source, options.data, Disk()
    if not source.is_dir():
        return fail(f"There is no folder {source}; check the name.", NOT_FOUND)
    manifest = read_manifest(source)
    make_folder(folder)
    lock = disk.lock(folder / LOCK)
    progress = Progress("copied bytes")
    try:
        if not finish_arrival(disk, folder):  # else it was interrupted when all was copied
            check_unused(disk, folder)
            _restore_keys(source, manifest.keys, folder)
            copy_files(Backup(source, manifest), manifest.listing, folder / ARRIVING, progress.show)
            replace_journal(disk, folder)
    finally:
        progress.end()
        disk.close(lock)
    listing = manifest.listing
    if options.json:
        say(json.dumps({"folder": str(folder), "frame": listing.number, "end": listing.end,
                        "keys": [key.name for key in manifest.keys]}))  # fmt: skip
        return OK
    say(f"{folder} holds all up to frame {listing.number}. Start a broker on it: posthouse serve"
        f" --data {folder}")  # fmt: skip
    if not manifest.keys:
        say(f"The backup holds no keys: put root-key and seal-key of the broker into {folder}"
            " before, or start with --cluster-secret.")  # fmt: skip
    return OK


def _restore_keys(source: Path, keys: "list[FolderFile]", folder: Path) -> None:
    """Raises StoreError or OSError, also where the folder has other keys."""
    from posthouse.server.files import keep_secret
    from posthouse.store.errors import StoreError

    for key in keys:
        if key.name not in KEYS:
            raise StoreError(f"{key.name!a} is not the name of a key")
        content = _key(source / key.name)
        if zlib.crc32(content) != key.checksum:
            raise StoreError(f"{source / key.name} is not what was backed up")
        there = folder / key.name
        if there.exists() and not hmac.compare_digest(_key(there), content):
            raise StoreError(f"{there} is another key than that of the backup; move it away.")
        keep_secret(there, content)
