"""Folders of files, and `TextFolder`: a class for each folder, in the same order on every machine."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from burnt.errors import DataError, did_you_mean, quantity

_SPLIT = re.compile(
    r"(.+[_-])?(train|training|val|valid|validation|test|testing|dev|eval)([_-]?(set|data|images|split|\d+))?",
    re.IGNORECASE,
)


def find_classes(folder: Path, classes: Sequence[str] | None = None) -> list[str]:
    """Return the classes of a folder: the names of its folders, sorted, or `classes` if each has a folder.

    Hidden folders, whose names begin with a dot, are not classes.
    """
    _check_folder(folder)
    found = sorted(e.name for e in os.scandir(folder) if e.is_dir() and not e.name.startswith("."))
    if classes is None:
        check_splits(folder, found, "classes=[...] names the classes, if they are these")
        if not found:
            raise DataError(
                "a folder has no classes",
                where=str(folder),
                expected="a folder for each class, with its files",
                found=quantity(sum(1 for _ in os.scandir(folder)), "file"),
                hint="is it the folder above? Texts without classes: TextFolder(..., labels=False)",
            )
        return found
    for name in classes:
        if name not in found:
            raise DataError(
                f"a class has no folder: {name!r}",
                where=str(folder),
                found=", ".join(found[:10]) or "no folders",
                hint=did_you_mean(name, found, f"make an empty folder {name}, and pass allow_empty=True"),
            )
    if len(set(classes)) < len(classes):
        raise DataError("classes has a name twice", found=", ".join(classes))
    return list(classes)


def find_labelled(
    folder: Path,
    classes: Sequence[str] | None,
    suffixes: Collection[str],
    kind: str,
    allow_empty: bool,
    others_hint: str | None = None,
) -> tuple[list[str], list[str], list[int], list[str]]:
    """List the files below the folders of the classes, each with its label.

    Returns the classes, the files and their labels, and the files of other suffixes.
    """
    names = find_classes(folder, classes)
    paths: list[str] = []
    labels: list[int] = []
    others: list[str] = []
    for label, name in enumerate(names):
        found, rest = find_files(folder / name, suffixes)
        if not found and not allow_empty:
            what = f"a class has no {kind}: {name!r}"
            raise no_files(what, folder / name, suffixes, rest, others_hint)
        paths += [f"{name}/{path}" for path in found]
        others += [f"{name}/{path}" for path in rest]
        labels += [label] * len(found)
    return names, paths, labels, others


def no_files(
    what: str, folder: Path, suffixes: Collection[str], others: list[str], others_hint: str | None = None
) -> DataError:
    """Return the error for a folder without files of some suffixes."""
    return DataError(
        what,
        where=str(folder),
        expected=f"files that end in {', '.join(suffixes)}",
        found=", ".join(others[:3]) or "an empty folder",
        hint=(others_hint if others else None) or "delete the folder, or pass allow_empty=True",
    )


def check_splits(folder: Path, names: Sequence[str], otherwise: str) -> None:
    """Raise a DataError if the folders in a folder are the parts of a data set, such as train and valid.

    One of them next to other folders may be a class, such as pictures of trains, and so may `positive_test`
    next to `negative_test`, where there is no training set.
    """
    found = [match for name in names if (match := _SPLIT.fullmatch(name))]
    has_train = any(match[2].lower().startswith("train") for match in found)
    splits = [match[0] for match in found if has_train or not match[1]]
    if len(splits) >= 2 or (splits and len(splits) == len(names)):
        train = next((name for name in splits if "train" in name.lower()), splits[0])
        raise DataError(
            "a folder holds the parts of a data set",
            where=str(folder),
            expected="a folder of one part",
            found=", ".join(splits),
            hint=f"take {str(folder / train)!r}; or {otherwise}",
        )


def find_files(folder: Path, suffixes: Collection[str]) -> tuple[list[str], list[str]]:
    """List the files below a folder, links followed and hidden files and folders left out.

    Returns the files with one of the suffixes, and the others: paths relative to `folder` with forward
    slashes, sorted by folder and name.
    """
    _check_folder(folder)
    found: list[str] = []
    others: list[str] = []
    for path in _walk(folder, "", {os.path.realpath(folder)}):
        (found if os.path.splitext(path)[1].lower() in suffixes else others).append(path)
    return found, others


def _walk(folder: Path, below: str, parents: set[str]) -> Iterator[str]:
    entries = sorted(os.scandir(folder / below), key=lambda entry: entry.name)
    for entry in entries:
        if entry.name.startswith("."):
            continue
        path = f"{below}{entry.name}"
        if entry.is_file():
            yield path
        elif entry.is_dir():
            real = os.path.realpath(entry.path)
            if real in parents:
                raise DataError(
                    "a link leads to a folder that holds it", where=entry.path, found=f"-> {real}"
                )
            yield from _walk(folder, f"{path}/", parents | {real})
        elif entry.is_symlink():
            raise DataError(
                "a link is broken",
                where=entry.path,
                found=f"-> {os.readlink(entry.path)}, which does not exist",
                hint="restore its target, or delete the link",
            )


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise DataError(
            "this is not a folder" if folder.exists() else "there is no such folder",
            where=str(folder),
            hint=None if folder.is_absolute() else f"the current folder is {Path.cwd()}",
        )


class TextFolder:
    """Text files for classification, in a folder for each class; or without labels.

    Files are read when they are asked for, sorted by folder and name. Hidden files are left out, links are
    followed.

    Args:
        folder: the folder that holds the folders of the classes, or the files.
        labels: False takes all files below `folder`, without labels.
        classes: the classes in the order of their labels, as in `ImageFolder`; None takes all.
        suffixes: suffixes of the files to read, in lower or upper case.
        encoding: the files' encoding. ``"utf-8"`` takes files with and without a byte order mark.
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
