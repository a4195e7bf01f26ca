"""MNIST, CIFAR and AG News from generated files of their formats."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from burnt.data import AgNews, Cifar10, Cifar100, Loader, Mnist
from burnt.data.standard import ag_news, cifar, mnist
from burnt.data.standard.mnist import read_idx
from burnt.errors import ArgumentError, DataError
from tests.messages import raises

RANDOM = np.random.default_rng(0)
DIGITS = RANDOM.integers(256, size=(5, 4, 3), dtype=np.uint8)
NUMBERS = np.array([3, 1, 4, 1, 9], dtype=np.uint8)


def idx(array: np.ndarray[Any, Any]) -> bytes:
    code = {"u1": 8, "i1": 9, "i2": 11, "i4": 12, "f4": 13, "f8": 14}[array.dtype.str[1:]]
    header = struct.pack(f">HBB{array.ndim}I", 0, code, array.ndim, *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


@pytest.mark.parametrize("where", [".", "MNIST/raw"])
@pytest.mark.parametrize("names", ["{}", "{}.gz", "dot"])
def test_mnist(names: str, where: str, tmp_path: Path) -> None:
    (tmp_path / where).mkdir(parents=True, exist_ok=True)
    for name, array in {"t10k-images-idx3-ubyte": DIGITS, "t10k-labels-idx1-ubyte": NUMBERS}.items():
        path = tmp_path / where / (name.replace("-idx", ".idx") if names == "dot" else names.format(name))
        path.write_bytes(gzip.compress(idx(array)) if path.suffix == ".gz" else idx(array))
    data = Mnist(tmp_path, "test")
    batch = next(Loader(data, batch_size=5).epoch(0))
    assert torch.equal(batch.images, torch.from_numpy(DIGITS)[:, None])
    assert batch.labels.tolist() == NUMBERS.tolist()
    assert batch.labels.dtype == torch.int64
    assert data.classes[3] == "3"
    with raises(DataError, "train-images-idx3-ubyte or train-images-idx3-ubyte.gz", "download=True"):
        Mnist(tmp_path)


@pytest.mark.parametrize("kind", ["u1", "i1", "i2", "i4", "f4", "f8"])
def test_idx_holds_every_dtype(kind: str, tmp_path: Path) -> None:
    array = np.arange(6).reshape(1, 2, 3).astype(kind)
    (tmp_path / "x").write_bytes(idx(array))
    found = read_idx(tmp_path / "x")
    assert torch.equal(found, torch.from_numpy(array))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", ["not an IDX file", "nothing"]),
        (b"\x89PNG", ["not an IDX file", "89504e47"]),
        (idx(DIGITS)[:-1], ["wrong size", "76 bytes for the shape (5, 4, 3)", "75 bytes"]),
        (idx(DIGITS) + b"x", ["wrong size", "77 bytes"]),
        (idx(DIGITS)[:9], ["wrong size", "9 bytes"]),
        (gzip.compress(idx(DIGITS))[:-9], ["cannot be read"]),
        (gzip.compress(idx(DIGITS))[:-8] + bytes(8), ["cannot be read", "CRC"]),
        (None, ["cannot be read", "No such file"]),
    ],
    ids=["empty", "PNG", "short", "long", "header", "gzip cut short", "gzip without checksum", "missing"],
)
def test_damaged_idx_files_are_named(data: bytes | None, words: list[str], tmp_path: Path) -> None:
    path = tmp_path / "x"
    if data is not None:
        path.write_bytes(data)
    with raises(DataError, *words, str(path)):
        read_idx(path)


def test_images_and_labels_that_do_not_fit(tmp_path: Path) -> None:
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(DIGITS))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(NUMBERS[:4]))
    with raises(DataError, "(5, 4, 3) and (4,)", match="do not fit together"):
        Mnist(tmp_path)


PIXELS = RANDOM.integers(256, size=(15, 3072), dtype=np.uint8)
FINE, COARSE = RANDOM.integers(10, size=15, dtype=np.uint8), RANDOM.integers(2, size=15, dtype=np.uint8)
NAMES = {"fine": [f"f{i}" for i in range(10)], "coarse": ["animal", "thing"]}


def write_cifar(folder: Path, kind: str, packed: bool) -> None:
    """Five parts of three records each in "train", and a sixth as "test"."""
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    parts = [slice(3 * i, 3 * i + 3) for i in range(5)]
    labels, inner = [FINE], "cifar-10-batches-bin"
    if kind == "100":
        names, parts, labels, inner = (
            ["train.bin", "test.bin"],
            [slice(15)],
            [COARSE, FINE],
            "cifar-100-binary",
        )
    files = {
        name: np.column_stack([*(kinds[rows] for kinds in labels), PIXELS[rows]]).tobytes()
        for name, rows in zip(names, [*parts, slice(2)], strict=True)
    }
    files["readme.html"] = b"<html>"
    if kind == "100":
        files |= {f"{k}_label_names.txt": ("\n".join(v) + "\n\n").encode() for k, v in NAMES.items()}
    if not packed:
        (folder / inner).mkdir()
        for file, data in files.items():
            (folder / inner / file).write_bytes(data)
        return
    with tarfile.open(folder / f"cifar-{kind}-binary.tar.gz", "w:gz") as tar:
        for file in sorted(files, reverse=True):
            info = tarfile.TarInfo(f"{inner}/{file}")
            info.size = len(files[file])
            tar.addfile(info, io.BytesIO(files[file]))


@pytest.mark.parametrize("packed", [False, True], ids=["folder", "archive"])
def test_cifar(packed: bool, tmp_path: Path) -> None:
    images = torch.from_numpy(PIXELS).reshape(-1, 3, 32, 32)
    write_cifar(tmp_path, "10", packed)
    data = Cifar10(tmp_path)
    batch = next(Loader(data, batch_size=15).epoch(0))
    assert torch.equal(batch.images, images)
    assert batch.labels.tolist() == FINE.tolist()
    assert batch.labels.dtype == torch.int64
    assert data.classes[6] == "frog"
    assert len(Cifar10(tmp_path, "test")) == 2
    write_cifar(tmp_path, "100", packed)
    hundred, twenty = Cifar100(tmp_path), Cifar100(tmp_path, "test", coarse=True)
    assert torch.equal(hundred.columns["images"], images)
    assert hundred.columns["labels"].tolist() == FINE.tolist()
    assert hundred.classes == NAMES["fine"]
    assert twenty.columns["labels"].tolist() == COARSE[:2].tolist()
    assert twenty.classes == NAMES["coarse"]
    if not packed:
        assert len(Cifar10(tmp_path / "cifar-10-batches-bin")) == 15


def test_damaged_files_of_cifar_are_named(tmp_path: Path) -> None:
    with raises(DataError, "cifar-10-binary.tar.gz, or a folder cifar-10-batches-bin: the binary version"):
        Cifar10(tmp_path)
    path = tmp_path / "test_batch.bin"
    path.write_bytes(bytes(3074))
    with raises(DataError, "a multiple of 3073 bytes", str(path)):
        Cifar10(tmp_path, "test")
    path.write_bytes(b"\x0a" + bytes(3072))
    with raises(DataError, "0 to 9"):
        Cifar10(tmp_path, "test")
    write_cifar(tmp_path, "100", packed=True)
    archive = tmp_path / "cifar-100-binary.tar.gz"
    whole = archive.read_bytes()
    archive.write_bytes(whole[:-2000])
    with pytest.raises(DataError, match="an archive is damaged"):
        Cifar100(tmp_path, "test")
    with tarfile.open(archive, "w:gz"):
        pass
    with raises(DataError, "no test.bin", match="lacks files"):
        Cifar100(tmp_path, "test")
    archive.unlink()
    (tmp_path / "test.bin").write_bytes(bytes(3074))
    with pytest.raises(DataError, match="names of the classes are missing"):
        Cifar100(tmp_path, "test")


ROWS = '"3","Wall St. ""Bears"" (Reuters)","Short-sellers, Wall\\Street."\n"4","A","B\x85b"\n'


def test_ag_news(tmp_path: Path) -> None:
    (tmp_path / "ag_news_csv").mkdir()
    (tmp_path / "ag_news_csv" / "train.csv").write_text(ROWS)
    data = AgNews(tmp_path)
    assert data[0] == {"texts": 'Wall St. "Bears" (Reuters) Short-sellers, Wall\\Street.', "labels": 2}
    assert data.labels == [2, 3]
    assert data.classes[data[1]["labels"]] == "Sci/Tech"
    batch = next(Loader(data, batch_size=2).epoch(0))
    assert batch.texts == data.texts
    assert batch.labels.tolist() == [2, 3]
    with raises(DataError, "test.csv"):
        AgNews(tmp_path, "test")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ('"5","a","b"', ["not a row of AG News", "5, a, b"]),
        ('"1","a"', ["not a row of AG News", "class 1 to 4"]),
        ("", ["an empty line"]),
        ('"1","a","b', ["cannot be read", "a quote is not closed"]),
        ('"1","a","' + "b" * 200000, ["cannot be read", "field larger than field limit"]),
    ],
    ids=lambda value: value[:12] if isinstance(value, str) else "",
)
def test_bad_rows_are_named_by_line(row: str, words: list[str], tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_text(ROWS + row + '\n"1","a","b"\n')
    with raises(DataError, *words, "test.csv:3"):
        AgNews(tmp_path, "test")


def test_splits_are_train_and_test(tmp_path: Path) -> None:
    for kind in (Mnist, Cifar10, Cifar100, AgNews):
        with pytest.raises(DataError, match="unknown split"):
            kind(tmp_path, "valid")  # type: ignore[arg-type]


def test_arguments_of_torchvision_have_a_hint(tmp_path: Path) -> None:
    for kind in (Mnist, Cifar10, Cifar100):
        with raises(ArgumentError, 'pass split="train" or "test"'):
            kind(tmp_path, train=True)  # type: ignore[call-arg]


def test_nothing_is_downloaded_unless_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: list[str] = []

    def fetched(file: Any, folder: Path, mirror: str | None) -> Path:
        wanted.append(f"{mirror} {file.name}")
        if file.name.startswith("cifar"):
            write_cifar(folder, "10" if "-10-" in file.name else "100", packed=True)
        elif file.name == "test.csv":
            (folder / file.name).write_text(ROWS)
        else:
            (folder / file.name).write_bytes(gzip.compress(idx(DIGITS if "images" in file.name else NUMBERS)))
        return folder / file.name

    for module in (mnist, cifar, ag_news):
        monkeypatch.setattr(module, "fetch", fetched)
    for kind in (Mnist, Cifar10, Cifar100, AgNews):
        with pytest.raises(DataError, match=r"missing|there is no"):
            kind(tmp_path, "test")
        assert not wanted
    for kind in (Mnist, Cifar10, Cifar100, AgNews):
        assert len(kind(tmp_path, "test", download=True, mirror="m")) > 1
        assert len(kind(tmp_path, "test", download=True)) > 1
    digits = ["t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"]
    files = [*digits, "cifar-10-binary.tar.gz", "cifar-100-binary.tar.gz", "test.csv"]
    assert wanted == [f"m {name}" for name in files]


def test_addresses_are_whole_and_encrypted() -> None:
    files = [file for pair in mnist.FILES.values() for file in pair]
    files += [Cifar10.remote, Cifar100.remote, *ag_news.FILES.values()]
    for file in files:
        assert len(bytes.fromhex(file.sha256)) == 32
        assert all(url.startswith("https://") and url.endswith("/" + file.name) for url in file.urls)
