"""Each kind of layer of torch.nn, swapped, next to the layer itself: results, gradients, buffers."""

import copy

import pytest
import torch
from torch import nn

import burnt
from burnt.swapping import site
from burnt.swapping.kind import KINDS, is_swapped

LABELS = torch.tensor([3, 0, 2, 3, 1, 0, 2])
CASES = {
    "linear": [(nn.Linear(5, 3), (4, 5)), (nn.Linear(5, 3, bias=False), (2, 3, 5)), (nn.Linear(5, 3), (5,))],
    "embedding": [(nn.Embedding(4, 3), LABELS), (nn.Embedding(4, 3, padding_idx=-1), LABELS.view(7, 1))],
    "conv": [
        (nn.Conv1d(3, 4, 3, padding=1), (2, 3, 9)),
        (nn.Conv2d(4, 6, (3, 2), stride=(2, 1), dilation=2, groups=2, bias=False), (2, 4, 9, 8)),
        (nn.Conv2d(4, 4, 1), (4, 5, 5)),
        (nn.Conv3d(2, 3, 2), (2, 2, 4, 5, 3)),
        (nn.Conv1d(3, 4, 5, padding="same"), (2, 3, 9)),
        (nn.Conv2d(3, 4, (3, 2), padding="same", dilation=(1, 2)), (2, 3, 9, 8)),
        (nn.Conv2d(3, 4, 3, stride=2, padding="valid"), (2, 3, 9, 8)),
    ],
    "conv_transpose": [
        (nn.ConvTranspose1d(3, 4, 3, stride=2, padding=1, output_padding=1), (2, 3, 9)),
        (nn.ConvTranspose2d(4, 6, (3, 2), stride=(2, 1), groups=2, bias=False), (2, 4, 9, 8)),
        (nn.ConvTranspose2d(4, 4, 2, stride=3), (2, 4, 3, 3), [9, 10]),
        (nn.ConvTranspose2d(4, 4, 2), (4, 5, 5)),
        (nn.ConvTranspose3d(2, 3, 2, dilation=2), (2, 2, 4, 5, 3)),
    ],
    "layer_norm": [
        (nn.LayerNorm(5), (4, 5)),
        (nn.LayerNorm((3, 5), eps=1e-2), (4, 3, 5)),
        (nn.LayerNorm(5, bias=False), (4, 5)),
        (nn.LayerNorm(5, elementwise_affine=False), (4, 5)),
    ],
    "rms_norm": [
        (nn.RMSNorm(5), (4, 5)),
        (nn.RMSNorm((3, 5), eps=1e-2), (4, 3, 5)),
        (nn.RMSNorm(5, elementwise_affine=False), (4, 5)),
    ],
    "group_norm": [
        (nn.GroupNorm(2, 6), (3, 6, 5)),
        (nn.GroupNorm(2, 6, eps=1e-2), (3, 6, 5)),
        (nn.GroupNorm(3, 6, affine=False), (2, 6, 5, 3)),
    ],
    "batch_norm": [
        (nn.BatchNorm1d(3), (4, 3)),
        (nn.BatchNorm1d(3, momentum=0.5, eps=1e-2), (4, 3, 2)),
        (nn.BatchNorm2d(3, eps=1e-2).eval(), (4, 3, 2, 5)),
        (nn.BatchNorm2d(3, affine=False), (4, 3, 2, 5)),
        (nn.BatchNorm2d(3, track_running_stats=False), (4, 3, 2, 5)),
        (nn.BatchNorm2d(3).eval(), (4, 3, 2, 5)),
        (nn.BatchNorm2d(3, track_running_stats=False).eval(), (4, 3, 2, 5)),
        (nn.BatchNorm3d(3), (4, 3, 2, 5, 1)),
    ],
    "gelu": [(nn.GELU(), (4, 5)), (nn.GELU("tanh"), (3,))],
    "silu": [(nn.SiLU(), (4, 5))],
    "dropout": [(nn.Dropout(0.0), (4, 5)), (nn.Dropout(1.0), (4, 5))],
    "softmax": [(nn.Softmax(-1), (4, 5)), (nn.Softmax(0), (4, 5))],
    "log_softmax": [(nn.LogSoftmax(1), (4, 5, 2))],
    "cross_entropy": [
        (nn.CrossEntropyLoss(), (7, 4), LABELS),
        (nn.CrossEntropyLoss(torch.rand(4), ignore_index=2, label_smoothing=0.1), (7, 4), LABELS),
        (nn.CrossEntropyLoss(reduction="none"), (7, 4, 2), LABELS[:, None].expand(7, 2)),
        (nn.CrossEntropyLoss(reduction="sum"), (7, 4), torch.rand(7, 4)),
    ],
    "max_pool": [
        (nn.MaxPool1d(3, 2), (2, 3, 9)),
        (nn.MaxPool2d(3, 2, 1), (2, 3, 9, 8)),
        (nn.MaxPool2d((3, 2), ceil_mode=True, return_indices=True), (2, 3, 10, 8)),
        (nn.MaxPool2d(2), (3, 4, 4)),
        (nn.MaxPool3d(2, dilation=2), (2, 3, 9, 8, 7)),
    ],
    "avg_pool": [
        (nn.AvgPool1d(3, 2), (2, 3, 9)),
        (nn.AvgPool2d(3, 2, 1, count_include_pad=False), (2, 3, 9, 8)),
        (nn.AvgPool2d(2, divisor_override=3), (3, 4, 4)),
        (nn.AvgPool3d(2), (2, 3, 9, 8, 7)),
    ],
    "adaptive_avg_pool": [
        (nn.AdaptiveAvgPool1d(2), (2, 3, 9)),
        (nn.AdaptiveAvgPool2d(1), (2, 3, 9, 8)),
        (nn.AdaptiveAvgPool2d((2, 3)), (3, 9, 8)),
        (nn.AdaptiveAvgPool3d((1, 2, 3)), (2, 3, 9, 8, 7)),
    ],
    "adaptive_max_pool": [
        (nn.AdaptiveMaxPool1d(2), (2, 3, 9)),
        (nn.AdaptiveMaxPool2d(1), (2, 3, 9, 8)),
        (nn.AdaptiveMaxPool2d((2, 3)), (3, 9, 8)),
        (nn.AdaptiveMaxPool3d((1, 2, 3)), (2, 3, 9, 8, 7)),
    ],
}
FLAT = [(kind, *case) for kind, cases in CASES.items() for case in cases]


def results(module, inputs):
    given = [t.clone().requires_grad_(t.is_floating_point()) if torch.is_tensor(t) else t for t in inputs]
    result = module(*given)
    result = list(result) if isinstance(result, tuple) else [result]
    wanted = [t for t in (*given, *module.parameters()) if getattr(t, "requires_grad", False)]
    gradients = torch.autograd.grad(result[0].square().sum(), wanted, allow_unused=True) if wanted else []
    return [*result, *gradients, *module.buffers()]


@pytest.mark.parametrize(("kind", "module", "first", "rest"), [(k, m, x, r) for k, m, x, *r in FLAT])
def test_as_the_layer(always, monkeypatch, kind, module, first, rest):
    # What the op refuses is not left to the original here.
    monkeypatch.setattr(site, "InputError", type("Never", (Exception,), {}))
    module = copy.deepcopy(module)
    if kind == "dropout":
        module.train()
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    inputs = [torch.randn(first) if isinstance(first, tuple) else first, *rest]
    original = copy.deepcopy(module)
    report = burnt.swap(module, verify=tuple(inputs) if module.training else None)
    [row] = report.rows
    module(*inputs) if not module.training else None
    original(*inputs) if not module.training else None
    assert (report.rows[0].state, row.kind) == ("swapped", kind)
    assert is_swapped(module)
    for _ in range(2):  # statistics go on from call to call
        for result, wanted in zip(results(module, inputs), results(original, inputs), strict=True):
            assert (result is None) == (wanted is None)
            if result is not None:
                torch.testing.assert_close(result, wanted, rtol=2e-5, atol=2e-5)


def test_every_kind_of_torchs_is_tried():
    of_torch = {
        kind.name
        for kind in KINDS.values()
        if kind.forward.__module__ == "burnt.swapping.patterns.torch_layers"
    }
    assert set(CASES) == of_torch


def test_bfloat16(always):
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64)).bfloat16()
    x = torch.randn(32, 64, dtype=torch.bfloat16)
    wanted = model(x)
    report = burnt.swap(model, skip="feed_forward", verify=x)
    assert report.swapped == ["0", "1", "2"]
    torch.testing.assert_close(model(x), wanted, rtol=0.05, atol=0.05)


def test_autocast(always):
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64))
    x = torch.randn(32, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        wanted = model(x)
        report = burnt.swap(model, skip="feed_forward", verify=x)
        result = model(x)
    assert result.dtype == wanted.dtype
    assert "0" in report.swapped
    torch.testing.assert_close(result, wanted, rtol=0.05, atol=0.05)
