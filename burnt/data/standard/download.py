"""Download files of known size and checksum, whole or not at all."""

from __future__ import annotations

import hashlib
import http.client
import logging
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from burnt._files import replacing
from burnt.errors import DataError, quantity

_CHUNK = 1 << 20
_TIMEOUT_SECONDS = 60
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RemoteFile:
    """A file on servers."""

    name: str
    size: int
    sha256: str
    urls: tuple[str, ...]


def fetch(file: RemoteFile, folder: Path, mirror: str | None = None) -> Path:
    """Return a file in a folder, downloaded if it is not there.

    It appears in the folder when size and checksum are right. Proxies are those of the environment
    (``HTTPS_PROXY``).
    """
    target = folder / file.name
    if target.is_file() and target.stat().st_size == file.size:
        return target
    urls: Sequence[str] = file.urls if mirror is None else [f"{mirror.rstrip('/')}/{file.name}"]
    failures = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for url in urls:
            _log.info("downloading %s (%.1f MB)", url, file.size / 1e6)
            try:
                with replacing(target) as temporary, temporary.open("wb") as out:
                    _copy(url, out, file)
                return target
            except _Failed as failure:
                failures.append(f"{url}: {failure}")
    except OSError as error:
        raise DataError(
            f"{file.name} cannot be written",
            where=str(target),
            expected=f"space for {quantity(file.size, 'byte')}",
            found=error.strerror,
            hint="free some space, or pass another folder",
        ) from error
    raise DataError(
        f"{file.name} cannot be downloaded",
        where=str(target),
        expected=f"{quantity(file.size, 'byte')} with SHA-256 {file.sha256}",
        found="\n".join(failures),
        hint="run it again; or download it by other means, and put it there",
    )


class _Failed(Exception):
    """A server did not give the file; the next one may."""


def _copy(url: str, out: IO[bytes], file: RemoteFile) -> None:
    """Copy what a server sends to a file, and compare it with what is known of it."""
    digest, count = hashlib.sha256(), 0
    try:
        response = urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS)
    except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: this is not an address
        raise _Failed(str(error) or type(error).__name__) from error
    with response:
        while True:
            try:
                chunk = response.read(_CHUNK)
            except (OSError, http.client.HTTPException) as error:
                raise _Failed(f"the connection broke after {quantity(count, 'byte')}: {error}") from error
            if not chunk:
                break
            count += len(chunk)
            if count > file.size:
                raise _Failed(f"it sends more than {quantity(file.size, 'byte')}")
            digest.update(chunk)
            out.write(chunk)
    if count < file.size:
        raise _Failed(f"the connection ended after {quantity(count, 'byte')}")
    if digest.hexdigest() != file.sha256:
        raise _Failed(f"the checksum differs: {digest.hexdigest()}")
