"""A PNG decoder in pure Python: all colour types and bit depths, but no interlacing.

Pillow is used where it is installed; the monitor must not require it.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_MAX_PIXELS = 4_000_000  # takes a few seconds in pure Python
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by colour type


class PngError(ValueError):
    """The image cannot be decoded; the message says why."""


class Image(NamedTuple):
    """An RGB image: three bytes per pixel, row by row from the top."""

    width: int
    height: int
    rgb: bytes


def decode(data: bytes) -> Image:
    """Decode a PNG file; transparent pixels are blended on grey.

    Raises:
        PngError: the file is damaged, or needs Pillow, which is not installed.
    """
    try:
        from PIL import Image as pillow
    except ImportError:
        return _decode(data)
    import io

    try:
        with pillow.open(io.BytesIO(data), formats=["PNG"]) as file:
            image = file.convert("RGBA")
            grey = pillow.new("RGBA", image.size, (128, 128, 128, 255))
            width, height = image.size
            return Image(width, height, pillow.alpha_composite(grey, image).convert("RGB").tobytes())
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as error:
        raise PngError(f"the PNG file is damaged: {error}") from error


def _decode(data: bytes) -> Image:
    if data[:8] != _SIGNATURE:
        raise PngError("this is not a PNG file")
    header, palette, alphas, compressed = None, b"", b"", []
    offset = 8
    while offset + 8 <= len(data):
        size, kind = struct.unpack_from(">I4s", data, offset)
        body = data[offset + 8 : offset + 8 + size]
        if len(body) < size:
            raise PngError("the PNG file is truncated")
        offset += size + 12
        if kind == b"IHDR" and size == 13:
            header = struct.unpack(">IIBBBBB", body)
        elif kind == b"PLTE":
            palette = body
        elif kind == b"tRNS":
            alphas = body
        elif kind == b"IDAT":
            compressed.append(body)
        elif kind == b"IEND":
            break
    if header is None:
        raise PngError("the PNG file has no header")
    width, height, depth, color_type, _, _, interlaced = header
    channels = _CHANNELS.get(color_type)
    if channels is None or depth not in (1, 2, 4, 8, 16) or not width or not height:
        raise PngError(f"unknown colour type {color_type} with {depth} bits")
    if interlaced:
        raise PngError("showing interlaced PNG files needs Pillow: pip install pillow")
    if width * height > _MAX_PIXELS:
        raise PngError(f"showing {width} x {height} pixels needs Pillow: pip install pillow")
    stride = (width * channels * depth + 7) // 8
    try:
        decompressor = zlib.decompressobj()
        raw = decompressor.decompress(b"".join(compressed), (stride + 1) * height)
    except zlib.error as error:
        raise PngError(f"the PNG file is damaged: {error}") from error
    if len(raw) < (stride + 1) * height:
        raise PngError("the PNG file is truncated")
    rows = _unfilter_rows(raw, stride, height, max(channels * depth // 8, 1))
    samples = b"".join(_unpack_samples(row, depth, width * channels, color_type == 3) for row in rows)
    return Image(width, height, _to_rgb(samples, color_type, palette, alphas))


def _unfilter_rows(raw: bytes, stride: int, height: int, pixel: int) -> list[bytearray]:
    """Undo the row filters; `pixel` is the distance in bytes to the same channel of the left neighbour."""
    rows = []
    previous = bytearray(stride)
    for y in range(height):
        start = y * (stride + 1)
        filter_type, row = raw[start], bytearray(raw[start + 1 : start + 1 + stride])
        if filter_type == 1:
            for i in range(pixel, stride):
                row[i] = (row[i] + row[i - pixel]) & 255
        elif filter_type == 2:
            row = bytearray((a + b) & 255 for a, b in zip(row, previous, strict=True))
        elif filter_type == 3:
            for i in range(stride):
                left = row[i - pixel] if i >= pixel else 0
                row[i] = (row[i] + (left + previous[i]) // 2) & 255
        elif filter_type == 4:
            for i in range(stride):
                a, c = (row[i - pixel], previous[i - pixel]) if i >= pixel else (0, 0)
                b = previous[i]
                # Paeth: whichever of left, above, above-left is nearest to left + above - above-left.
                pa, pb, pc = abs(b - c), abs(a - c), abs(a + b - 2 * c)
                row[i] = (row[i] + (a if pa <= pb and pa <= pc else b if pb <= pc else c)) & 255
        elif filter_type != 0:
            raise PngError(f"the PNG file is damaged: unknown filter {filter_type}")
        rows.append(row)
        previous = row
    return rows


def _unpack_samples(row: bytearray, depth: int, count: int, indexed: bool) -> bytes:
    """Unpack samples to one byte each, scaled to 0..255 unless they are palette indices."""
    if depth == 8:
        return bytes(row)
    if depth == 16:
        return bytes(row[::2])
    scale = 1 if indexed else 255 // ((1 << depth) - 1)
    places = range(8 - depth, -1, -depth)
    mask = (1 << depth) - 1
    return bytes((byte >> place & mask) * scale for byte in row for place in places)[:count]


def _to_rgb(samples: bytes, kind: int, palette: bytes, alphas: bytes) -> bytes:
    """Convert samples to three bytes per pixel."""
    if kind == 2:
        return samples
    if kind == 0:
        return bytes(v for sample in samples for v in (sample, sample, sample))
    if kind == 3:
        colors = [palette[i : i + 3] for i in range(0, len(palette) - 2, 3)]
        if samples and max(samples) >= len(colors):
            raise PngError("the PNG file is damaged: a pixel's colour is not in the palette")
        colors = [_blend_on_grey(c, alphas[i] if i < len(alphas) else 255) for i, c in enumerate(colors)]
        return b"".join(colors[sample] for sample in samples)
    width = _CHANNELS[kind]
    pixels = (samples[i : i + width] for i in range(0, len(samples), width))
    return b"".join(_blend_on_grey(p[:1] * 3 if kind == 4 else p[:3], p[-1]) for p in pixels)


def _blend_on_grey(color: bytes, alpha: int) -> bytes:
    """Blend a colour on grey."""
    if alpha == 255:
        return color
    return bytes((c * alpha + 128 * (255 - alpha)) // 255 for c in color)


def fit(image: Image, width: int, height: int) -> Image:
    """Scale an image to at most `width` by `height` pixels, keeping its proportions.

    Large images are reduced by averaging pixels; small ones are enlarged by a whole number, so that pixels
    stay square.
    """
    if width < 1 or height < 1:
        return Image(0, 0, b"")
    shrink = max(image.width / width, image.height / height)
    if shrink <= 1:
        factor = max(min(width // image.width, height // image.height), 1)
        rows = []
        for y in range(image.height):
            row = image.rgb[y * image.width * 3 : (y + 1) * image.width * 3]
            rows.append(b"".join(row[x : x + 3] * factor for x in range(0, len(row), 3)) * factor)
        return Image(image.width * factor, image.height * factor, b"".join(rows))
    across, down = max(round(image.width / shrink), 1), max(round(image.height / shrink), 1)
    pixels = bytearray()
    for y in range(down):
        top, bottom = (
            y * image.height // down,
            max((y + 1) * image.height // down, y * image.height // down + 1),
        )
        source_rows = [image.rgb[r * image.width * 3 : (r + 1) * image.width * 3] for r in range(top, bottom)]
        for x in range(across):
            left = x * image.width // across
            right = max((x + 1) * image.width // across, left + 1)
            count = (right - left) * (bottom - top)
            for channel in range(3):
                pixels.append(
                    sum(sum(row[left * 3 + channel : right * 3 : 3]) for row in source_rows) // count
                )
    return Image(across, down, bytes(pixels))
