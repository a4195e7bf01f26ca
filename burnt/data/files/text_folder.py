"""TextFolder: text files, in a folder for each class or all as one corpus."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from burnt.data.files.folders import find_files, find_labelled, no_files
from burnt.errors import DataError, quantity


class TextFolder:
    """Text files for classification, in a folder for each class; or without labels.

    Files are read when they are asked for, sorted by folder and name. Hidden files are left out, links are
    followed.

    Args:
        folder: the folder that holds the folders of the classes, or the files.
        labels: False takes all files below `folder`, without labels.
        classes: as of `ImageFolder`.
        suffixes: which files are read, in lower or upper case.
        encoding: of all files. ``"utf-8"`` takes files with and without a byte order mark.
        allow_empty: whether a class may have no files.

    Items are ``{"texts": str, "labels": int}``, or ``{"texts": str}`` without labels. Ends of lines become
    ``"\\n"``.

    Attributes:
        classes: the names of the classes; without labels, an empty list.
        paths: the files' paths, relative to `folder`.
        labels: the files' labels; without labels, None.

    Raises:
        DataError: there is no such folder, it has no classes, or a class no files; of an item, that its file
            cannot be decoded, with its path and line.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> for name, text in ("negative", "Dull."), ("positive", "A joy."):
    ...     (folder / name).mkdir()
    ...     _ = (folder / name / "1.txt").write_text(text)
    >>> reviews = TextFolder(folder)
    >>> reviews.classes, reviews[1]
    (['negative', 'positive'], {'texts': 'A joy.', 'labels': 1})
    >>> TextFolder(folder, labels=False).corpus(separator=" ")
    'Dull. A joy.'
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        labels: bool = True,
        classes: Sequence[str] | None = None,
        suffixes: Sequence[str] = (".txt",),
        encoding: str = "utf-8",
        allow_empty: bool = False,
    ) -> None:
        self.folder = Path(folder)
        self.encoding = encoding
        suffixes = [suffixes] if isinstance(suffixes, str) else suffixes
        suffixes = [suffix.lower() for suffix in suffixes]
        self.classes: list[str] = []
        self.labels: list[int] | None = None
        hint = 'suffixes=(".md",) reads others'
        if labels:
            self.classes, self.paths, self.labels, _ = find_labelled(
                self.folder, classes, suffixes, "text files", allow_empty, hint
            )
            return
        self.paths, others = find_files(self.folder, suffixes)
        if not self.paths:
            raise no_files("a folder has no text files", self.folder, suffixes, others, hint)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        item: dict[str, Any] = {"texts": read_text(self.folder / self.paths[index], self.encoding)}
        if self.labels is not None:
            item["labels"] = self.labels[index]
        return item

    def corpus(self, separator: str = "\n") -> str:
        """Return all files as one text, in their order, with `separator` between them."""
        return separator.join(read_text(self.folder / path, self.encoding) for path in self.paths)

    def __repr__(self) -> str:
        classes = f", {len(self.classes)} classes" if self.classes else ""
        return f"TextFolder({quantity(len(self), 'file')}{classes})"


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """Read a text file; an error names its path, and the line that cannot be decoded."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError("a file cannot be read", where=str(path), found=error.strerror) from error
    try:
        text = data.decode("utf-8-sig" if encoding.lower() in ("utf-8", "utf8") else encoding)
    except UnicodeDecodeError as error:
        before = error.object[: error.start].decode(error.encoding, errors="replace")
        line = before.count("\n") + 1
        column = len(before) - (before.rfind("\n") + 1) + 1
        raise DataError(
            f"a file is not {encoding}",
            where=f"{path}:{line}",
            found=f"byte 0x{error.object[error.start]:02x} at position {column} of the line: {error.reason}",
            hint='pass encoding=; files of Windows are often "cp1252"',
        ) from error
    except LookupError as error:
        raise DataError(
            "unknown encoding", found=repr(encoding), hint='"utf-8", "cp1252", "utf-16" ...'
        ) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")
