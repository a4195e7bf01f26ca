"""Text files by class and as a corpus, and files in another encoding."""

from __future__ import annotations

from pathlib import Path

import pytest

from burnt.data import Loader, TextFolder
from burnt.errors import DataError
from tests.messages import raises


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, data in {
        "good/2.txt": b"\xef\xbb\xbfFine.\r\nYes.",
        "good/1.txt": "Schön.\n".encode(),
        "bad/x.TXT": b"Dull.\rNo.",
        "bad/.x.txt": b"\xff",
        "bad/read.md": b"notes",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    return tmp_path


def test_texts_by_class(folder: Path) -> None:
    data = TextFolder(folder)
    assert data.classes == ["bad", "good"]
    assert data.paths == ["bad/x.TXT", "good/1.txt", "good/2.txt"]
    assert list(data) == [
        {"texts": "Dull.\nNo.", "labels": 0},
        {"texts": "Schön.\n", "labels": 1},
        {"texts": "Fine.\nYes.", "labels": 1},
    ]
    assert repr(data) == "TextFolder(3 files, 2 classes)"
    batch = next(Loader(data, batch_size=3).epoch(0))
    assert batch.texts == ["Dull.\nNo.", "Schön.\n", "Fine.\nYes."]
    assert batch.labels.tolist() == [0, 1, 1]
    assert TextFolder(folder, classes=["good", "bad"]).labels == [0, 0, 1]


def test_a_corpus(folder: Path) -> None:
    data = TextFolder(folder, labels=False, suffixes=(".txt", ".md"))
    assert data.labels is None
    assert data.classes == []
    assert data[0] == {"texts": "notes"}
    assert data.corpus(separator="|") == "notes|Dull.\nNo.|Schön.\n|Fine.\nYes."
    assert repr(data) == "TextFolder(4 files)"


@pytest.mark.parametrize(
    ("encoding", "data", "line", "position"),
    [
        ("utf-8", b"one\ntwo\ncaf\xe9\n", 3, 4),
        ("utf-8", b"\xef\xbb\xbfcaf\xe9\n", 1, 4),
        ("ascii", b"one\n\xc3\xa9", 2, 1),
        ("utf-16-le", "one\ntwo\n".encode("utf-16-le") + b"\x00\xd8a\x00", 3, 1),
    ],
)
def test_another_encoding_is_named_by_line(
    encoding: str, data: bytes, line: int, position: int, tmp_path: Path
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    with raises(
        DataError,
        f"a file is not {encoding}",
        f"{path}:{line}",
        f"at position {position} of the line",
        "cp1252",
    ):
        TextFolder(tmp_path, labels=False, encoding=encoding)[0]


def test_cp1252_is_read_when_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    assert TextFolder(tmp_path, labels=False, encoding="cp1252")[0] == {"texts": "café"}
    with pytest.raises(DataError, match="unknown encoding"):
        TextFolder(tmp_path, labels=False, encoding="utf-9")[0]


def test_suffixes_are_one_or_several_in_any_case(tmp_path: Path) -> None:
    for name in ("a.TXT", "b.md", "LICENSE", "t"):
        (tmp_path / name).touch()
    for suffixes, paths in ((".txt", ["a.TXT"]), ((".TXT", ".Md"), ["a.TXT", "b.md"])):
        assert TextFolder(tmp_path, labels=False, suffixes=suffixes).paths == paths


def test_folders_without_texts(folder: Path, tmp_path: Path) -> None:
    (folder / "none").mkdir()
    with raises(DataError, "a class has no text files: 'none'"):
        TextFolder(folder)
    assert TextFolder(folder, allow_empty=True).classes == ["bad", "good", "none"]
    with raises(DataError, "no text files", "bad/read.md"):
        TextFolder(folder, labels=False, suffixes=(".rst",))
    (folder / "good" / "1.txt").unlink()
    data = TextFolder(folder, classes=["bad", "good"])
    (folder / "good" / "2.txt").unlink()
    with raises(DataError, str(folder / "good" / "2.txt"), match="cannot be read"):
        data[1]
