"""Download files of known size and checksum, whole or not at all."""

from __future__ import annotations

import hashlib
import http.client
import logging
import urllib.error
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


_SUMS = """
440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609 9912422 train-images-idx3-ubyte.gz
3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c 28881 train-labels-idx1-ubyte.gz
8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6 1648877 t10k-images-idx3-ubyte.gz
f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6 4542 t10k-labels-idx1-ubyte.gz
c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd 170052171 cifar-10-binary.tar.gz
58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec 168513733 cifar-100-binary.tar.gz
76a0a2d2f92b286371fe4d4044640910a04a803fdd2538e0f3f29a5c6f6b672e 29470338 train.csv
521465c2428ed7f02f8d6db6ffdd4b5447c1c701962353eb2c40d548c3c85699 1857427 test.csv
"""
"""The SHA-256 and size of each file of the standard data sets."""


def remote_file(name: str, *homes: str) -> RemoteFile:
    """Return a file of a standard data set, which lies in one of these folders."""
    lines = (line.split() for line in _SUMS.strip().splitlines())
    sha256, size = next((sha256, int(size)) for sha256, size, found in lines if found == name)
    return RemoteFile(name, size, sha256, tuple(home + name for home in homes))


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
        hint="run it again, or pass mirror=; or download it by other means, and put it there",
    )


class _Failed(Exception):
    """A server did not give the file; the next one may."""


def _copy(url: str, out: IO[bytes], file: RemoteFile) -> None:
    """Copy what a server sends to a file, and compare it with what is known of it."""
    digest, count = hashlib.sha256(), 0
    try:
        response = urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS)
    except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: this is not an address
        text = str(error.reason if type(error) is urllib.error.URLError else error)
        raise _Failed(text or type(error).__name__) from error
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
