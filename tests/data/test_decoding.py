"""Pictures of every kind as tensors, and what is said of files that are none."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from burnt.data import read_image, read_mask
from burnt.errors import DataError, UnsupportedError

RED = (255, 0, 0)
PIXELS = np.random.default_rng(0).integers(256, size=(6, 9, 3), dtype=np.uint8)


def encoded(image: Image.Image, kind: str = "png", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["png", "jpeg", "webp", "bmp", "tiff", "gif"])
def test_formats_are_read_as_pillow_reads_them(kind: str, tmp_path: Path) -> None:
    data = encoded(Image.fromarray(PIXELS), kind)
    path = tmp_path / f"picture.{kind}"
    path.write_bytes(data)
    for mode in ("RGB", "L"):
        wanted = np.array(Image.open(io.BytesIO(data)).convert(mode)).reshape(6, 9, -1)
        for source in (data, path, str(path), Image.open(io.BytesIO(data))):
            found = read_image(source, mode=mode)  # type: ignore[arg-type]
            assert found.dtype == torch.uint8
            assert found.permute(1, 2, 0).tolist() == wanted.tolist()
    floats = read_image(path, dtype=torch.float32)
    assert torch.allclose(floats * 255, read_image(path).float())


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_orientation_of_cameras_is_applied(orientation: int) -> None:
    """The tag says where the stored rows and columns lie: EXIF 2.32, table 4."""
    upright = torch.from_numpy(PIXELS).permute(2, 0, 1)
    stored = {
        1: upright, 2: upright.flip(2), 3: upright.flip(1, 2), 4: upright.flip(1),
        5: upright.transpose(1, 2), 6: upright.rot90(1, (1, 2)),
        7: upright.flip(1, 2).transpose(1, 2), 8: upright.rot90(-1, (1, 2)),
    }[orientation]  # fmt: skip
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = Image.fromarray(stored.permute(1, 2, 0).contiguous().numpy())
    assert torch.equal(read_image(encoded(image, exif=exif)), upright)


@pytest.mark.parametrize("kind", ["png", "tiff"])
def test_sixteen_bits_are_scaled_not_cut_off(kind: str) -> None:
    values = np.array([[0, 128, 257, 32896, 65535]], dtype=np.uint16)
    data = encoded(Image.fromarray(values), kind)
    assert read_image(data, mode="L").tolist() == [[[0, 0, 1, 128, 255]]]
    assert read_image(data).tolist() == [[[0, 0, 1, 128, 255]]] * 3
    rgba = read_image(data, mode="RGBA")
    assert rgba.dtype == torch.uint8
    assert rgba[3].tolist() == [[255] * 5]
    floats = read_image(data, mode="L", dtype=torch.float32)
    assert torch.allclose(floats[0], torch.from_numpy(values / 65535).float())
    assert read_image(data, mode="RGBA", dtype=torch.float32)[3].tolist() == [[1] * 5]
    assert read_mask(data).tolist() == values.tolist()


def test_palettes_become_colours_and_in_masks_stay_numbers() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([0, 0, 0, *RED])
    image.putpixel((1, 0), 1)
    for data in (encoded(image), encoded(image, transparency=b"\x80\xff")):
        assert read_image(data)[:, 0].tolist() == [[0, 255], [0, 0], [0, 0]]
        assert read_mask(data).tolist() == [[0, 1]]


def test_alpha_is_dropped_kept_or_put_on_a_background() -> None:
    image = Image.new("RGBA", (1, 1), (*RED, 51))
    assert read_image(image).flatten().tolist() == [255, 0, 0]
    assert read_image(image, mode="RGBA").flatten().tolist() == [255, 0, 0, 51]
    assert read_image(image, background=0).flatten().tolist() == [51, 0, 0]
    assert read_image(image, background=(255, 255, 255)).flatten().tolist() == [255, 204, 204]
    grey = Image.new("LA", (1, 1), (200, 0))
    assert read_image(grey, mode="L").flatten().tolist() == [200]
    assert read_image(grey, mode="L", background=255).flatten().tolist() == [255]


def test_one_bit_and_four_inks() -> None:
    assert read_image(Image.new("1", (1, 1), 1), mode="L").item() == 255
    assert read_mask(Image.new("1", (1, 1), 1)).item() == 1
    assert read_image(Image.new("CMYK", (1, 1), (0, 255, 255, 0))).flatten().tolist() == [255, 0, 0]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["a picture cannot be decoded", "no format that Pillow knows", "is it complete?"]),
        (b"no picture", ["a picture cannot be decoded", "no format that Pillow knows"]),
        (encoded(Image.fromarray(PIXELS), "jpeg")[:-40], ["a picture cannot be decoded", "truncated"]),
        (encoded(Image.fromarray(PIXELS))[:60], ["a picture cannot be decoded"]),
        (encoded(Image.fromarray(PIXELS)).replace(b"IDAT", b"iDAT"), ["a picture cannot be decoded"]),
        (encoded(Image.fromarray(PIXELS[..., 0] / np.float32(7)), "tiff"), ["range", "mode F", "tifffile"]),
        (
            encoded(Image.fromarray(PIXELS[..., 0].astype(np.int32) * 999), "tiff"),
            ["range", "mode I", "16 bits"],
        ),
        (None, ["a file cannot be read", "No such file"]),
    ],
    ids=["empty", "text", "cut jpeg", "cut png", "broken png", "float", "int", "missing"],
)
def test_what_cannot_be_decoded_is_named(content: bytes | None, words: list[str], tmp_path: Path) -> None:
    path = tmp_path / "broken.jpg"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError) as error:
        read_image(path)
    assert str(path) in str(error.value)
    assert all(word in str(error.value) for word in words), str(error.value)
    if content:
        with pytest.raises(DataError):
            read_image(content)


def test_damaged_metadata_does_not_matter() -> None:
    content = encoded(Image.fromarray(PIXELS), exif=b"Exif\0\0no TIFF header")
    assert torch.equal(read_image(content).permute(1, 2, 0), torch.from_numpy(PIXELS))


def test_an_image_that_pillow_has_only_opened_is_read(tmp_path: Path) -> None:
    path = tmp_path / "broken.png"
    path.write_bytes(encoded(Image.fromarray(PIXELS)))
    with Image.open(path) as image:
        assert torch.equal(read_image(image).permute(1, 2, 0), torch.from_numpy(PIXELS))
    path.write_bytes(encoded(Image.fromarray(PIXELS))[:60])
    with Image.open(path) as image, pytest.raises(DataError, match="a picture cannot be decoded") as error:
        read_image(image)
    assert error.value.where == str(path)
    with pytest.raises(DataError, match="this is no picture") as error:
        read_image(5)  # type: ignore[arg-type]
    assert error.value.found == "int"


def test_masks_have_no_colours(tmp_path: Path) -> None:
    path = tmp_path / "mask.png"
    Image.new("RGB", (1, 1)).save(path)
    with pytest.raises(DataError) as error:
        read_mask(path)
    assert str(path) in str(error.value)
    assert "mode RGB" in str(error.value)


def test_unknown_modes_and_dtypes() -> None:
    with pytest.raises(DataError, match="unknown mode of images"):
        read_image(b"", mode="CMYK")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="no such dtype"):
        read_image(b"", dtype=torch.float16)


def test_without_pillow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UnsupportedError) as error:
        read_image(tmp_path / "a.png")
    assert 'pip install "burnt[data]"' in str(error.value)
    assert os.fspath(tmp_path / "a.png") in str(error.value)
