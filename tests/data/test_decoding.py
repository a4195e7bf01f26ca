"""Pictures of every kind as tensors, and what is said of files that are none."""

from __future__ import annotations

import io
import os
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from burnt.data import read_image, read_mask
from burnt.errors import DataError, UnsupportedError
from tests.data.pictures import png
from tests.messages import raises

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
    with raises(DataError, str(path), *words):
        read_image(path)
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
    with pytest.raises(DataError, match="this is not a picture") as error:
        read_image(5)  # type: ignore[arg-type]
    assert error.value.found == "int"


def test_masks_have_no_colours(tmp_path: Path) -> None:
    path = tmp_path / "mask.png"
    Image.new("RGB", (1, 1)).save(path)
    with raises(DataError, str(path), "mode RGB"):
        read_mask(path)


def test_unknown_modes_and_dtypes() -> None:
    with pytest.raises(DataError, match="unknown mode of images"):
        read_image(b"", mode="CMYK")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="no such dtype"):
        read_image(b"", dtype=torch.float16)


def test_without_pillow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with raises(UnsupportedError, 'pip install "burnt[data]"', os.fspath(tmp_path / "a.png")):
        read_image(tmp_path / "a.png")


DEEP = struct.pack(">2H", 2570, 51400)
GREY = {  # a transparent value of 10 and another one of 200, in files of every depth
    "8 bits": (png(8, 0, 2, bytes([10, 200]), struct.pack(">H", 10)), 10, 200),
    "16 bits": (png(16, 0, 2, DEEP, struct.pack(">H", 2570)), 10, 200),
    "16 bits, another value": (png(16, 0, 2, DEEP, struct.pack(">H", 2571)), None, 200),
    "2 bits": (png(2, 0, 2, bytes([0b01100000]), struct.pack(">H", 1)), 85, 170),
    "4 bits": (png(4, 0, 2, bytes([0x3C]), struct.pack(">H", 3)), 51, 204),
    "1 bit": (png(1, 0, 2, bytes([0b01000000]), struct.pack(">H", 0)), 0, 255),
    "colours": (png(8, 2, 2, bytes([10] * 3 + [200] * 3), struct.pack(">3H", 10, 10, 10)), 10, 200),
}


@pytest.mark.parametrize("kind", GREY)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_transparent_values_are_those_of_the_file(kind: str, dtype: torch.dtype) -> None:
    """The PNG specification: pixels of the value in tRNS are transparent, all others opaque."""
    data, clear, solid = GREY[kind]
    scale = 255 if dtype == torch.float32 else 1
    first = 10 if clear is None else clear
    for mode, channels in (("L", 1), ("RGB", 3)):
        for background, expected in ((255, [255, solid]), (None, [first, solid])):
            expected = [first, solid] if clear is None else expected
            found = read_image(data, mode=mode, dtype=dtype, background=background)  # type: ignore[arg-type]
            assert torch.allclose(
                found.float() * scale, torch.tensor(expected).float().expand(channels, 1, 2)
            )
    alpha = read_image(data, mode="RGBA", dtype=dtype, background=255)[3] * scale
    assert alpha.tolist() == [[255 if clear is None else 0, 255]]
    if clear is not None:
        red = read_image(data, dtype=dtype, background=(255, 0, 0))[:, 0, 0] * scale
        assert red.tolist() == [255, 0, 0]


def test_transparency_that_pillow_cuts_off_is_refused() -> None:
    row = struct.pack(">6H", 2570, 2570, 2570, 2571, 2571, 2571)  # equal in their upper 8 bits
    data = png(16, 2, 2, row, struct.pack(">3H", 2570, 2570, 2570))
    assert read_image(data).tolist() == [[[10, 10]]] * 3
    for options in ({"background": 0}, {"mode": "RGBA"}):
        with pytest.raises(DataError, match="transparent pixels of a picture are unknown"):
            read_image(data, **options)  # type: ignore[arg-type]


def tiff(bits: int, inverted: bool, data: bytes) -> bytes:
    """Return a TIFF file of one row of two grey values, written by its specification."""
    tags = [(256, 2), (257, 1), (258, bits), (259, 1), (262, 0 if inverted else 1), (273, 8), (277, 1)]
    tags += [(278, 1), (279, len(data))]
    start = 8 + len(data) + len(data) % 2
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    body = data + bytes(start - 8 - len(data))
    return b"II*\0" + struct.pack("<I", start) + body + struct.pack("<H", len(tags)) + entries + bytes(4)


MASKS = {
    "PNG of 1 bit": (png(1, 0, 2, bytes([0b01000000])), [0, 1]),
    "PNG of 2 bits": (png(2, 0, 4, bytes([0b00011011])), [0, 1, 2, 3]),
    "PNG of 4 bits": (png(4, 0, 2, bytes([0x19])), [1, 9]),
    "PNG of 8 bits": (png(8, 0, 2, bytes([1, 255])), [1, 255]),
    "PNG of 16 bits": (png(16, 0, 2, struct.pack(">2H", 1, 1000)), [1, 1000]),
    "PGM to 20": (b"P5\n3 1\n20\n" + bytes([0, 1, 20]), [0, 1, 20]),
    "PGM to 254": (b"P5\n3 1\n254\n" + bytes([1, 127, 254]), [1, 127, 254]),
    "PGM to 255": (b"P5\n2 1\n255\n" + bytes([1, 200]), [1, 200]),
    "PGM to 1000": (b"P5\n3 1\n1000\n" + struct.pack(">3H", 1, 999, 1000), [1, 999, 1000]),
    "PGM to 65535": (b"P5\n2 1\n65535\n" + struct.pack(">2H", 1, 1000), [1, 1000]),
    "text PGM": (b"P2\n# classes\n3 1\n7\n0 3 7\n", [0, 3, 7]),
    "text PGM to 300": (b"P2\n3 1\n300\n0 3 300\n", [0, 3, 300]),
    "TIFF of 2 bits": (tiff(2, False, bytes([0b01110000])), [1, 3]),
    "TIFF of 4 bits": (tiff(4, False, bytes([0x19])), [1, 9]),
    "TIFF of 8 bits": (tiff(8, False, bytes([1, 9])), [1, 9]),
}


@pytest.mark.parametrize("kind", MASKS)
def test_masks_have_the_values_of_the_file(kind: str, tmp_path: Path) -> None:
    data, expected = MASKS[kind]
    assert read_mask(data).tolist() == [expected]
    with Image.open(io.BytesIO(data)) as image:  # not loaded
        assert read_mask(image).tolist() == [expected]
    path = tmp_path / "mask"
    path.write_bytes(data)
    assert read_mask(path).tolist() == [expected]


def test_masks_in_formats_where_0_is_white_are_ambiguous() -> None:
    bitmaps = [b"P4\n2 1\n" + bytes([0b01000000]), b"P1\n2 1\n0 1\n"]
    for data in (*bitmaps, *(tiff(bits, True, bytes([0x19, 0])) for bits in (1, 2, 4, 8))):
        with pytest.raises(DataError, match="0 is white"):
            read_mask(data)
        assert read_image(data, mode="L").shape == (1, 1, 2)  # pictures are fine


@pytest.mark.parametrize("grey", [True, False])
def test_bitmaps_of_4_bits_are_read_or_refused(grey: bool) -> None:
    palette = b"".join(bytes((i, i if grey else 0, i, 0)) for i in range(16))
    header = struct.pack("<IiiHHIIiiII", 40, 2, 1, 1, 4, 0, 4, 0, 0, 16, 0)
    start = 14 + len(header) + len(palette)
    data = b"BM" + struct.pack("<IHHI", start + 4, 0, 0, start) + header + palette + bytes([0x3A, 0, 0, 0])
    if grey:
        for read in (read_mask, read_image):
            with pytest.raises(DataError, match="Pillow misreads BMP files") as caught:
                read(data)
            assert caught.value.found == "4 bits"
    else:
        assert read_mask(data).tolist() == [[3, 10]]


def test_the_limit_of_pixels_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "large.png"
    Image.new("L", (9, 7)).save(path)
    for limit in (62, 20):  # Pillow itself warns from its limit on, and refuses twice as much
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        for read in (read_image, read_mask):
            with pytest.raises(DataError, match="a picture has too many pixels") as caught:
                read(path)
            assert caught.value.where == str(path)
            assert f"at most {limit} pixels, which is PIL.Image.MAX_IMAGE_PIXELS" in str(caught.value)
            assert "63" in str(caught.value.found) or "9 x 7" in str(caught.value.found)
    for limit in (63, None):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        assert read_image(path, mode="L").shape == (1, 7, 9)


@pytest.mark.parametrize("name", ["PNG of 2 bits", "PNG of 4 bits", "PNG of 8 bits", "PGM"])
def test_a_mask_that_is_decoded_before_is_refused_if_its_classes_are_lost(name: str, tmp_path: Path) -> None:
    path = tmp_path / "mask"
    data, classes = (b"P5 2 1 9\n\1\7", [1, 7]) if name == "PGM" else MASKS[name]
    path.write_bytes(data)
    with Image.open(path) as image:
        image.load()
    if "8 bits" in name:
        assert read_mask(image).tolist() == [classes]
    else:
        with pytest.raises(DataError, match="a mask was decoded before") as caught:
            read_mask(image)
        assert caught.value.where == str(path)
    with Image.open(path) as image:  # decoded here: read as often as one likes
        for _ in range(2):
            assert read_mask(image).tolist() == [classes]
