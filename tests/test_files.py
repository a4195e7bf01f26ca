"""Files are replaced whole or not at all."""

import errno
import os
import stat
import time
from pathlib import Path

import pytest

from burnt._files import replacing


def test_the_new_content_takes_the_place_of_the_old(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("old")
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
        assert temporary.parent == path.parent
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("failing", ["os.fsync", "pathlib.Path.replace", "pathlib.Path.chmod"])
def test_a_failure_at_any_point_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    path = tmp_path / "f"
    path.write_text("old")

    def fail(*args: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(failing, fail)
        with pytest.raises(OSError, match="no space left"), replacing(path) as temporary:
            temporary.write_text("new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_in_the_block_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("old")

    def write_half() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_mode_is_that_of_any_new_file(tmp_path: Path) -> None:
    path = tmp_path / "f"
    old = os.umask(0o027)
    try:
        with replacing(path) as temporary:
            temporary.write_text("x")
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_the_umask_of_the_process_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It belongs to all threads: one that makes a file meanwhile would get a mode that nobody asked for."""
    monkeypatch.setattr("os.umask", None)
    with replacing(tmp_path / "f") as temporary:
        temporary.write_text("x")
    assert (tmp_path / "f").read_text() == "x"


def test_a_missing_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "no" / "f"):
        pass


def test_what_is_no_regular_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(FileExistsError, match="not a regular file"), replacing(tmp_path / name):
            raise AssertionError("nothing is written")
    assert (tmp_path / "pipe").is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "pipe"]


def test_an_error_names_the_file_and_not_the_temporary_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught, replacing(tmp_path / "missing" / "a.html"):
        pass
    assert caught.value.filename == str(tmp_path / "missing" / "a.html")


def test_a_full_disk_is_said_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "f"
    with pytest.raises(OSError, match="No space left") as caught, replacing(path):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert str(caught.value) == f"[Errno 28] No space left on device: {str(path)!r}"


def test_what_killed_processes_left_is_deleted_after_a_day(tmp_path: Path) -> None:
    names = (".f.1234.0a1b2c3d", ".f.5.00000000", ".f.note", ".f.1234.0a1b2c3d.txt", ".g.1234.0a1b2c3d")
    for name in names:
        (tmp_path / name).write_text("half")
        os.utime(tmp_path / name, (time.time(), time.time() - 86500))
    (tmp_path / names[1]).write_text("still being written")
    with replacing(tmp_path / "f") as temporary:
        temporary.write_text("new")
    assert {path.name for path in tmp_path.iterdir()} == {"f", *names[1:]}
