"""Writing files so that readers see the old or the new content, never a part."""

from __future__ import annotations

import errno
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary file beside `path` to write to, which takes its place when the block ends well.

    Raises:
        OSError: the folder does not exist, cannot be written or is full; an old file is untouched. Or `path`
            is a folder or a device: for root, `/dev/null` would become a file.
    """
    target = Path(path)
    if target.exists() and not target.is_file():
        raise FileExistsError(errno.EEXIST, "not a regular file", os.fspath(target))
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        temporary.touch(exist_ok=False)
    except OSError as error:  # nobody knows the name of the temporary file
        raise type(error)(error.errno, error.strerror, os.fspath(target)) from None
    mode = temporary.stat().st_mode  # what the umask makes of a new file
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        # Whoever writes it may have put a private file in its place, as safetensors does.
        temporary.chmod(mode)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power cut; does nothing on Windows, which cannot open folders."""
    if sys.platform == "win32":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
