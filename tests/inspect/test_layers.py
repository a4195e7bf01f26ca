import warnings

import pytest
import torch
from torch import nn

from burnt.inspect.layers import describe, find_mismatch

LAYERS = {
    "linear": nn.Linear(4, 5),
    "conv1d": nn.Conv1d(3, 4, 2),
    "conv2d": nn.Conv2d(3, 4, 2),
    "grouped": nn.Conv2d(4, 4, 2, groups=2),
    "conv3d": nn.Conv3d(3, 4, 2),
    "transposed1d": nn.ConvTranspose1d(3, 4, 2),
    "transposed2d": nn.ConvTranspose2d(3, 4, 2),
    "transposed3d": nn.ConvTranspose3d(3, 4, 2),
    "batch1d": nn.BatchNorm1d(4),
    "batch2d": nn.BatchNorm2d(4),
    "batch3d": nn.BatchNorm3d(4),
    "layer": nn.LayerNorm(4),
    "layer2": nn.LayerNorm((3, 4)),
    "rms": nn.RMSNorm(4),
    "group": nn.GroupNorm(2, 4),
    "lstm": nn.LSTM(4, 5, batch_first=True),
    "gru": nn.GRU(3, 5),
    "softmax": nn.Softmax(-3),
    "log_softmax": nn.LogSoftmax(3),
    "softmin": nn.Softmin(1),
    "upsample": nn.Upsample(scale_factor=2),
    "upsample_linear": nn.Upsample(5, mode="linear"),
    "upsample_bilinear": nn.UpsamplingBilinear2d(3),
    "upsample_trilinear": nn.Upsample((3, 4, 5), mode="trilinear"),
    "upsample_size": nn.Upsample((3, 4)),
    **{f"max_pool{n}d": getattr(nn, f"MaxPool{n}d")(1) for n in (1, 2, 3)},
    **{f"avg_pool{n}d": getattr(nn, f"AvgPool{n}d")(1) for n in (1, 2, 3)},
    **{f"lp_pool{n}d": getattr(nn, f"LPPool{n}d")(2, 1) for n in (1, 2, 3)},
    **{f"adaptive_avg_pool{n}d": getattr(nn, f"AdaptiveAvgPool{n}d")(1) for n in (1, 2, 3)},
    **{f"adaptive_max_pool{n}d": getattr(nn, f"AdaptiveMaxPool{n}d")(1) for n in (1, 2, 3)},
}
SHAPES = [
    (),
    (4,),
    (2, 3),
    (2, 4),
    (3, 4),
    (2, 3, 4),
    (2, 4, 3),
    (3, 6, 4),
    (2, 4, 4),
    (2, 3, 5, 4),
    (2, 4, 5, 3),
    (3, 4, 5, 4),
    (2, 3, 5, 4, 6),
    (2, 4, 5, 6, 3),
    (2, 3, 5, 4, 6, 4),
]


@pytest.mark.parametrize("name", LAYERS)
def test_what_fits_is_what_torch_accepts(name):
    layer = LAYERS[name]
    for shape in SHAPES:
        x = torch.randn(shape)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                layer(x)
            accepted = True
        except (RuntimeError, ValueError, IndexError, NotImplementedError):
            accepted = False
        assert (find_mismatch(layer, (x,), {}) is None) == accepted, shape


@pytest.mark.parametrize(
    ("layer", "shape", "expected", "instead"),
    [
        (nn.Linear(128, 64), (2, 7, 256), "(..., 128)", "Linear(256, 64)"),
        (nn.Conv2d(3, 16, 3), (2, 4, 9, 9), "(N, 3, H, W)", "Conv2d(4, 16, ...)"),
        (nn.Conv2d(3, 16, 3), (2, 9), "(N, 3, H, W)", None),
        (nn.ConvTranspose1d(3, 16, 3), (2, 4, 9), "(N, 3, L)", "ConvTranspose1d(4, 16, ...)"),
        (nn.Conv3d(3, 16, 3), (2, 4, 9, 9, 9), "(N, 3, D, H, W)", "Conv3d(4, 16, ...)"),
        (nn.BatchNorm1d(4), (2, 3), "(N, 4) or (N, 4, L)", "BatchNorm1d(3)"),
        (nn.LayerNorm((5, 6)), (2, 6, 5), "(..., 5, 6)", None),
        (nn.RMSNorm(4), (2, 6), "(..., 4)", "RMSNorm(6)"),
        (nn.GroupNorm(2, 4), (2, 6, 3), "(N, 4, ...)", "GroupNorm(2, 6)"),
        (nn.LSTM(4, 5), (7, 2, 6), "(..., 4)", "LSTM(6, 5)"),
        (nn.Softmax(2), (2, 5), "an axis 2", None),
        (nn.Upsample(scale_factor=2), (2, 3), "(N, C, L) or (N, C, H, W) or (N, C, D, H, W)", None),
        (nn.Upsample(scale_factor=2, mode="bicubic"), (2, 3, 4), "(N, C, H, W)", None),
    ],
    ids=str,
)
def test_messages(layer, shape, expected, instead):
    problem = find_mismatch(layer, (torch.empty(shape),), {})
    assert (problem.expected, problem.found, problem.instead) == (expected, str(shape), instead)


def test_hints_for_wrong_orders():
    images = torch.empty(2, 9, 9, 3)
    assert "movedim(-1, 1)" in find_mismatch(nn.Conv2d(3, 4, 2), (images,), {}).hint
    assert nn.Conv2d(3, 4, 2)(images.movedim(-1, 1)).shape[1] == 4
    assert "flatten(1)" in find_mismatch(nn.Linear(8 * 3 * 3, 2), (torch.empty(2, 8, 3, 3),), {}).hint


def test_bags_need_rows_or_offsets():
    layer, row, offsets = nn.EmbeddingBag(10, 4), torch.zeros(3, dtype=torch.int64), torch.tensor([0])
    assert find_mismatch(layer, (row[None],), {}) is None
    assert find_mismatch(layer, (row, offsets), {}) is None
    assert find_mismatch(layer, (row,), {"offsets": offsets}) is None
    assert find_mismatch(layer, (row,), {}).found == "(3,) without offsets"
    assert find_mismatch(layer, (row[None], offsets), {}).found == "(1, 3) and offsets"
    assert find_mismatch(layer, (row,), {}).expected == "indices (N, L), or (L) and offsets (N)"


def test_embeddings_need_indices():
    for layer in (nn.Embedding(10, 4), nn.EmbeddingBag(10, 4)):
        problem = find_mismatch(layer, (torch.empty(2, 7),), {})
        assert (problem.expected, problem.found) == ("indices of dtype int64 or int32", "float32 (2, 7)")
        assert find_mismatch(layer, (torch.empty(2, 7, dtype=torch.int32),), {}) is None


def test_attention_looks_at_each_input():
    layer, x, wide = nn.MultiheadAttention(8, 2, kdim=6), torch.empty(2, 7, 8), torch.empty(2, 7, 6)
    assert find_mismatch(layer, (x, wide, x), {}) is None
    assert find_mismatch(layer, (wide, wide, x), {}).expected == "(..., 8)"
    assert find_mismatch(layer, (x, x, x), {}).expected == "key (..., 6)"
    assert find_mismatch(layer, (x,), {"key": wide, "value": wide}).found == "value (2, 7, 6)"


def test_inputs_by_keyword_and_without_tensors():
    assert find_mismatch(nn.Linear(4, 5), (), {"input": torch.empty(2, 3)}).found == "(2, 3)"
    assert find_mismatch(nn.Linear(4, 5), (), {}) is None
    assert find_mismatch(nn.Linear(4, 5), ("text",), {}) is None
    assert find_mismatch(nn.Linear(4, 5), (torch.tensor(1.0),), {}).found == "()"


def test_uninitialised_lazy_layers_accept_anything():
    assert find_mismatch(nn.LazyLinear(4), (torch.empty(2, 3),), {}) is None


def test_layers_of_others_are_known_by_their_attributes():
    class BatchNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.num_features = 4

    assert describe(BatchNorm()) == "BatchNorm(4)"
    assert find_mismatch(BatchNorm(), (torch.empty(2, 4, 1, 1, 1, 1),), {}) is None
    assert find_mismatch(BatchNorm(), (torch.empty(2, 3),), {}).expected == "(N, 4, ...)"


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        (nn.Bilinear(3, 4, 5), "Bilinear(3, 4 -> 5)"),
        (nn.Conv1d(3, 4, 5), "Conv1d(3 -> 4, 5)"),
        (nn.Embedding(10, 4), "Embedding(10 -> 4)"),
        (nn.MultiheadAttention(8, 2), "MultiheadAttention(8, 2 heads)"),
        (nn.GRU(3, 5), "GRU(3 -> 5)"),
        (nn.GroupNorm(2, 4), "GroupNorm(4, 2 groups)"),
        (nn.LayerNorm((3, 4)), "LayerNorm(3, 4)"),
        (nn.BatchNorm2d(4), "BatchNorm2d(4)"),
        (nn.MaxPool2d(2), "MaxPool2d"),
    ],
    ids=str,
)
def test_describe(layer, text):
    assert describe(layer) == text
