import itertools
import warnings

import pytest
import torch
from torch import nn

from burnt.inspect.layers import describe, misfit

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
    "instance1d": nn.InstanceNorm1d(4, affine=True),
    "instance2d": nn.InstanceNorm2d(4, track_running_stats=True),
    "instance2d_plain": nn.InstanceNorm2d(4),
    "instance3d": nn.InstanceNorm3d(4, affine=True),
    "lstm": nn.LSTM(4, 5, batch_first=True),
    "gru": nn.GRU(3, 5),
    "prelu": nn.PReLU(4),
    "glu": nn.GLU(1),
    "softmax": nn.Softmax(-3),
    "log_softmax": nn.LogSoftmax(3),
    "softmin": nn.Softmin(1),
    "softmax2d": nn.Softmax2d(),
    "dropout1d": nn.Dropout1d(),
    "dropout2d": nn.Dropout2d(),
    "dropout2d_eval": nn.Dropout2d().eval(),
    "dropout2d_0": nn.Dropout2d(0.0),
    "dropout3d": nn.Dropout3d(),
    "alpha": nn.FeatureAlphaDropout(),
    "flatten": nn.Flatten(),
    "flatten2": nn.Flatten(2, -2),
    "unflatten": nn.Unflatten(1, (2, 2)),
    "unflatten_rest": nn.Unflatten(-1, (2, -1)),
    "pixel_shuffle": nn.PixelShuffle(2),
    "pixel_unshuffle": nn.PixelUnshuffle(2),
    "channel_shuffle": nn.ChannelShuffle(2),
    "fold": nn.Fold((3, 2), (2, 1), padding=(0, 1), stride=(1, 3)),
    "unfold": nn.Unfold((2, 5), dilation=(2, 1)),
    "upsample": nn.Upsample(scale_factor=2),
    "upsample_linear": nn.Upsample(5, mode="linear"),
    "upsample_bilinear": nn.UpsamplingBilinear2d(3),
    "upsample_trilinear": nn.Upsample((3, 4, 5), mode="trilinear"),
    "upsample_size": nn.Upsample((3, 4)),
    "zero1d": nn.ZeroPad1d(2),
    "crop1d": nn.ZeroPad1d((-2, -2)),
    "constant2d": nn.ConstantPad2d((1, 0, -2, -1), 3.0),
    "constant3d": nn.ConstantPad3d(1, 3.0),
    "reflection1d": nn.ReflectionPad1d((3, 0)),
    "reflection2d": nn.ReflectionPad2d((1, 1, 0, 4)),
    "reflection3d": nn.ReflectionPad3d(3),
    "replication1d": nn.ReplicationPad1d(7),
    "replication2d": nn.ReplicationPad2d(7),
    "replication3d": nn.ReplicationPad3d(7),
    "circular1d": nn.CircularPad1d((4, 1)),
    "circular2d": nn.CircularPad2d((0, 0, 5, 1)),
    "circular3d": nn.CircularPad3d(5),
    **{f"max_pool{n}d": getattr(nn, f"MaxPool{n}d")(1) for n in (1, 2, 3)},
    **{f"avg_pool{n}d": getattr(nn, f"AvgPool{n}d")(1) for n in (1, 2, 3)},
    **{f"lp_pool{n}d": getattr(nn, f"LPPool{n}d")(2, 1) for n in (1, 2, 3)},
    **{f"adaptive_avg_pool{n}d": getattr(nn, f"AdaptiveAvgPool{n}d")(1) for n in (1, 2, 3)},
    **{f"adaptive_max_pool{n}d": getattr(nn, f"AdaptiveMaxPool{n}d")(1) for n in (1, 2, 3)},
    "local_response": nn.LocalResponseNorm(2),
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
        assert (misfit(layer, (x,), {}) is None) == accepted, shape


@pytest.mark.parametrize("kind", ["Circular", "Constant", "Reflection", "Replication"])
def test_paddings_that_remove_elements_fit_what_torch_accepts(kind):
    for padding in itertools.product((-2, -1, 0, 2), repeat=2):
        if kind == "Circular" and min(padding) < 0 < max(padding):
            continue  # torch copies between overlapping memory, and fails by chance
        layers = [getattr(nn, f"{kind}Pad{rank}d") for rank in (1, 2)]
        options = (1.0,) if kind == "Constant" else ()
        for size in range(4):
            for layer, x in (
                (layers[0](padding, *options), torch.zeros(1, 1, size)),
                (layers[1]((*padding, 0, 0), *options), torch.zeros(1, 1, 2, size)),
            ):
                try:
                    layer(x)
                    accepted = True
                except RuntimeError:
                    accepted = False
                assert (misfit(layer, (x,), {}) is None) == accepted, (padding, x.shape)


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
        (nn.PReLU(4), (2, 6, 3), "(N, 4, ...)", "PReLU(6)"),
        (nn.GLU(), (2, 5), "an even size on axis -1, to halve it", None),
        (nn.Softmax(2), (2, 5), "an axis 2", None),
        (nn.Flatten(2, 1), (2, 3, 4), "axis 2 not after axis 1", None),
        (nn.Unflatten(1, (3, 4)), (2, 10), "size 12 on axis 1, for (3, 4)", None),
        (nn.Unflatten(1, (3, -1)), (2, 10), "a multiple of 3 on axis 1, for (3, -1)", None),
        (nn.PixelShuffle(3), (2, 4, 5, 5), "(..., 9 * C, H, W)", None),
        (nn.PixelUnshuffle(3), (2, 4, 5, 6), "(..., C, 3 * H, 3 * W)", None),
        (nn.ChannelShuffle(2), (2, 3, 4), "(N, 2 * C, L, ...)", None),
        (nn.Fold((4, 5), 2), (1, 4, 11), "(N, 4 * C, 12)", None),
        (nn.Unfold(3), (1, 4, 2, 2), "(N, C, H, W), not smaller than the kernel", None),
        (nn.Upsample(scale_factor=2), (2, 3), "(N, C, L) or (N, C, H, W) or (N, C, D, H, W)", None),
        (nn.Upsample(scale_factor=2, mode="bicubic"), (2, 3, 4), "(N, C, H, W)", None),
        (nn.ReflectionPad1d(3), (2, 4, 3), "(N, C, L) with L at least 4", None),
        (nn.CircularPad2d((0, 0, 4, 1)), (2, 4, 3, 3), "(N, C, H, W) with H at least 4", None),
        (nn.ZeroPad2d(1), (3,), "(..., H, W)", None),
    ],
    ids=str,
)
def test_messages(layer, shape, expected, instead):
    problem = misfit(layer, (torch.empty(shape),), {})
    assert (problem.expected, problem.found, problem.instead) == (expected, str(shape), instead)


def test_hints_for_wrong_orders():
    images = torch.empty(2, 9, 9, 3)
    assert "movedim(-1, 1)" in misfit(nn.Conv2d(3, 4, 2), (images,), {}).hint
    assert nn.Conv2d(3, 4, 2)(images.movedim(-1, 1)).shape[1] == 4
    assert "flatten(1)" in misfit(nn.Linear(8 * 3 * 3, 2), (torch.empty(2, 8, 3, 3),), {}).hint


def test_two_inputs():
    x, other = torch.empty(2, 3), torch.empty(2, 4)
    for layer in (nn.CosineSimilarity(), nn.PairwiseDistance()):
        assert misfit(layer, (x, x[:1]), {}) is None
        problem = misfit(layer, (x,), {"x2": other})
        assert (problem.expected, problem.found) == (
            "equal shapes, or shapes that broadcast",
            "(2, 3) and (2, 4)",
        )
    assert misfit(nn.CosineSimilarity(), (x[0], x[0]), {}).expected == "an axis 1"
    assert misfit(nn.CosineSimilarity(), (x[0], x), {}) is None
    layer = nn.Bilinear(3, 4, 5)
    assert describe(layer) == "Bilinear(3, 4 -> 5)"
    assert misfit(layer, (x, other), {}) is None
    for pair in ((other, x), (x, x), (x, other[:1])):
        assert misfit(layer, pair, {}).expected == "(..., 3) and (..., 4), equal before the last axis"
    assert misfit(layer, (x, other.double()), {}) is None
    assert misfit(layer, (x.double(), other.double()), {}).dtype == torch.float64


def test_bags_need_rows_or_offsets():
    layer, row, offsets = nn.EmbeddingBag(10, 4), torch.zeros(3, dtype=torch.int64), torch.tensor([0])
    assert misfit(layer, (row[None],), {}) is None
    assert misfit(layer, (row, offsets), {}) is None
    assert misfit(layer, (row,), {"offsets": offsets}) is None
    assert misfit(layer, (row,), {}).found == "(3,) without offsets"
    assert misfit(layer, (row[None], offsets), {}).found == "(1, 3) and offsets"
    assert misfit(layer, (row,), {}).expected == "indices (N, L), or (L) and offsets (N)"


def test_embeddings_need_indices():
    for layer in (nn.Embedding(10, 4), nn.EmbeddingBag(10, 4)):
        problem = misfit(layer, (torch.empty(2, 7),), {})
        assert (problem.expected, problem.found) == ("indices of dtype int64 or int32", "float32 (2, 7)")
        assert misfit(layer, (torch.empty(2, 7, dtype=torch.int32),), {}) is None


def test_attention_looks_at_each_input():
    layer, x, wide = nn.MultiheadAttention(8, 2, kdim=6), torch.empty(2, 7, 8), torch.empty(2, 7, 6)
    assert misfit(layer, (x, wide, x), {}) is None
    assert misfit(layer, (wide, wide, x), {}).expected == "(..., 8)"
    assert misfit(layer, (x, x, x), {}).expected == "key (..., 6)"
    assert misfit(layer, (x,), {"key": wide, "value": wide}).found == "value (2, 7, 6)"


def test_inputs_by_keyword_and_without_tensors():
    assert misfit(nn.Linear(4, 5), (), {"input": torch.empty(2, 3)}).found == "(2, 3)"
    assert misfit(nn.Linear(4, 5), (), {}) is None
    assert misfit(nn.Linear(4, 5), ("text",), {}) is None
    assert misfit(nn.Linear(4, 5), (torch.tensor(1.0),), {}).found == "()"


def test_uninitialised_lazy_layers_accept_anything():
    assert misfit(nn.LazyLinear(4), (torch.empty(2, 3),), {}) is None


def test_layers_of_others_are_known_by_their_attributes():
    class BatchNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.num_features = 4

    assert describe(BatchNorm()) == "BatchNorm(4)"
    assert misfit(BatchNorm(), (torch.empty(2, 4, 1, 1, 1, 1),), {}) is None
    assert misfit(BatchNorm(), (torch.empty(2, 3),), {}).expected == "(N, 4, ...)"


@pytest.mark.parametrize(
    ("layer", "text"),
    [
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
