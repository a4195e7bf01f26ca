"""Upsample: anti-aliasing against Pillow, and refused arguments."""

from typing import Any

import numpy as np
import pytest
import torch

from burnt import nn
from burnt.errors import InputValueError, ShapeError

HAS_LANCZOS = hasattr(torch.ops.aten, "_upsample_lanczos2d_aa")


@pytest.mark.parametrize(
    "mode",
    [
        "bilinear",
        "bicubic",
        pytest.param("lanczos", marks=pytest.mark.skipif(not HAS_LANCZOS, reason="from torch 2.13 on")),
    ],
)
@pytest.mark.parametrize("size", [(5, 7), (20, 9)], ids=str)
def test_antialias_is_pillows(mode: Any, size: tuple[int, int]) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).random((16, 18), dtype=np.float32)
    filters = {"bilinear": "BILINEAR", "bicubic": "BICUBIC", "lanczos": "LANCZOS"}
    filter = getattr(image.Resampling, filters[mode])
    expected = np.array(image.fromarray(pixels).resize(size[::-1], filter))
    layer = nn.Upsample(size, mode=mode, antialias=True)
    result = layer(torch.from_numpy(pixels)[None, None])[0, 0]
    torch.testing.assert_close(result, torch.from_numpy(expected), atol=1e-5, rtol=1e-5)
    plain = nn.Upsample(size, mode="bilinear")(torch.from_numpy(pixels)[None, None])
    assert (plain - result).abs().max() > 1e-3


def test_it_shrinks_too_and_takes_every_mode_and_rank() -> None:
    for rank, modes in {3: ["linear"], 4: ["bilinear", "bicubic"], 5: ["trilinear"]}.items():
        x = torch.randn(2, 3, *(6,) * (rank - 2))
        for mode in ["nearest", "nearest-exact", "area", *modes]:
            assert nn.Upsample(scale_factor=0.5, mode=mode)(x).shape[2:] == (3,) * (rank - 2)


def keys(distance: np.ndarray, a: float = -0.75) -> np.ndarray:
    """Cubic convolution's kernel (Keys, 1981), with the `a` of torch."""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = a * (((distance - 5) * distance + 8) * distance - 4)
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0))


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("size", [3, 11])
def test_cubic_of_sequences(size: int, align_corners: bool) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 6))
    i = np.arange(size)
    position = i * 5 / (size - 1) if align_corners else (i + 0.5) * 6 / size - 0.5
    taps = np.floor(position)[:, None] + np.arange(-1, 3)
    weights = keys(np.abs(position[:, None] - taps))
    expected = (x[..., taps.astype(int).clip(0, 5)] * weights).sum(-1)
    for given in (size, (size,)):
        layer = nn.Upsample(given, mode="cubic", align_corners=align_corners)
        torch.testing.assert_close(layer(torch.from_numpy(x)), torch.from_numpy(expected))
    if not align_corners:
        layer = nn.Upsample(scale_factor=size / 6, mode="cubic", recompute_scale_factor=True)
        torch.testing.assert_close(layer(torch.from_numpy(x)), torch.from_numpy(expected))


@pytest.mark.parametrize(
    ("arguments", "what", "found"),
    [
        ({}, "Upsample needs one size", "neither"),
        ({"size": 3, "scale_factor": 2.0}, "Upsample needs one size", "both"),
        ({"size": 3, "mode": "quintic"}, "Upsample has no such mode", "'quintic'"),
        ({"size": 3, "mode": "billinear"}, "Upsample has no such mode", "'billinear'"),
        ({"size": 3, "align_corners": True}, "Upsample has no align_corners in this mode", "'nearest'"),
        ({"size": 3, "mode": "area", "antialias": True}, "Upsample has no antialias in this mode", "'area'"),
        ({"size": (3,), "mode": "bilinear"}, "Upsample has other axes in this mode", (3,)),
        ({"scale_factor": (2.0, 2.0), "mode": "cubic"}, "Upsample has other axes in this mode", (2.0, 2.0)),
        ({"size": 3, "recompute_scale_factor": True}, "Upsample has no factor to recompute", "size"),
        ({"size": 3, "mode": "lanczos"}, "Upsample has Lanczos filters only with antialias", None),
    ],
    ids=str,
)
def test_refused_arguments(arguments: dict[str, Any], what: str, found: Any) -> None:
    with pytest.raises(InputValueError) as caught:
        nn.Upsample(**arguments)
    assert (caught.value.what, caught.value.found) == (what, found)
    assert caught.value.expected


def test_a_mode_that_is_misspelt() -> None:
    with pytest.raises(InputValueError, match=r"did you mean 'bilinear'\?"):
        nn.Upsample(3, mode="billinear")  # type: ignore[arg-type]


def test_the_wrong_number_of_axes() -> None:
    for mode, shape, expected in [
        ("bilinear", (2, 3, 4), "(N, C, H, W)"),
        ("cubic", (2, 3, 4, 4), "(N, C, L)"),
        ("nearest", (3, 4), "(N, C, L) or (N, C, H, W) or (N, C, D, H, W)"),
    ]:
        with pytest.raises(ShapeError, match="in        Upsample") as caught:
            nn.Upsample(scale_factor=2, mode=mode)(torch.zeros(shape))  # type: ignore[arg-type]
        assert (caught.value.expected, caught.value.found) == (expected, str(shape))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_antialias_of_a_width_of_1(mode: Any) -> None:
    """Each axis by itself: torch is right about images that stay two columns wide or more."""
    x = torch.rand(2, 3, 6, 8, generator=torch.Generator().manual_seed(0), requires_grad=True)

    def along(x: torch.Tensor, height: int) -> torch.Tensor:
        size = height, x.shape[-1]
        return torch.nn.functional.interpolate(x, size, mode=mode, align_corners=False, antialias=True)

    wide = along(along(x.mT, 1).expand(2, 3, 1, 6).mT.expand(2, 3, 6, 2), 3)[..., :1]
    for layer in (
        nn.Upsample((3, 1), mode=mode, antialias=True),
        nn.Upsample(scale_factor=(0.5, 0.125), mode=mode, antialias=True),
        nn.Upsample(scale_factor=(0.5, 0.2), mode=mode, antialias=True, recompute_scale_factor=True),
    ):
        result = layer(x)
        torch.testing.assert_close(result, wide)
        (grad,) = torch.autograd.grad(result[:, :, 1].sum(), x)
        (expected,) = torch.autograd.grad(wide[:, :, 1].sum(), x, retain_graph=True)
        torch.testing.assert_close(grad, expected)
        assert grad.std() > 0
    assert nn.Upsample(1, mode=mode, antialias=True)(
        torch.full((1, 3, 6, 6), 9, dtype=torch.uint8)
    ).tolist() == [[[[9]], [[9]], [[9]]]]
