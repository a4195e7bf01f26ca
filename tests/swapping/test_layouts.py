"""Inputs without strides go to torch, whose layers take some of them: sparse and nested ones, oneDNN's.

And the gradients that places are measured with, in the layout of the results.
"""

import copy

import pytest
import torch
from torch import nn

import burnt
from burnt import kernels

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
]


def nested(x):
    return torch.nested.nested_tensor([x, x[:1]])


def dense(tensor):
    if tensor.is_nested:
        return tensor.to_padded_tensor(0.0)
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


FEATURES = torch.randn(4, 16).relu()
WORDS = torch.arange(5)
IMAGES = torch.randn(2, 3, 64, 64)
WIDE = torch.randn(512, 256).relu()  # large enough for kernels that are made
CASES = {
    "linear of CSR": (nn.Linear(16, 4), FEATURES, torch.Tensor.to_sparse_csr),
    "linear of COO": (nn.Linear(16, 4), FEATURES, torch.Tensor.to_sparse),
    "linear of nested": (nn.Linear(16, 4), FEATURES, nested),
    "wide linear of COO": (nn.Linear(256, 512), WIDE, torch.Tensor.to_sparse),
    "layer norm of nested": (nn.LayerNorm(16), FEATURES, nested),
    "embedding of nested": (nn.Embedding(5, 4), WORDS, nested),
    "gelu of nested": (nn.GELU(), FEATURES, nested),
    "silu of nested": (nn.SiLU(), FEATURES, nested),
    "softmax of nested": (nn.Softmax(-1), FEATURES, nested),
    "dropout of nested": (nn.Dropout(1.0), FEATURES, nested),
    "gelu of oneDNN's": (nn.GELU(), WIDE, torch.Tensor.to_mkldnn),
    "max pool of oneDNN's": (nn.MaxPool2d(2), IMAGES, torch.Tensor.to_mkldnn),
    "avg pool of oneDNN's": (nn.AdaptiveAvgPool2d(2), IMAGES, torch.Tensor.to_mkldnn),
}


@pytest.mark.parametrize("name", CASES)
def test_a_swapped_layer_takes_what_the_layer_takes(always, name):
    layer, plain, turned = CASES[name]
    other = turned(plain)
    with torch.no_grad():
        expected = layer(other)
        for calls in ([other, plain, other], [plain, other, plain, other]):
            ours = copy.deepcopy(layer)
            report = burnt.swap(ours)
            for x in calls:
                result = ours(x)
            assert report.swapped, report
            assert (result.layout, result.is_nested) == (expected.layout, expected.is_nested)
            torch.testing.assert_close(dense(result), dense(expected))


@pytest.mark.parametrize("size", [4, 512])
def test_what_no_op_takes_is_refused_by_torch(size):
    x = torch.randn(size, 256).abs()
    for op in (kernels.gelu, kernels.silu):
        op(x)
        for other in (x.to_sparse(), x.to_sparse_csr()):
            with pytest.raises(RuntimeError, match=r"(?i)sparse"):
                op(other)
        op(x)


def test_gradients_come_in_the_layout_of_the_result(monkeypatch):
    """Torch's batch norm of channels-last takes eight times as long for others, which models do not give."""
    strides = []
    grad = torch.autograd.grad

    def watched(roots, wanted, cotangents, **options):
        strides.extend((root.stride(), given.stride()) for root, given in zip(roots, cotangents, strict=True))
        return grad(roots, wanted, cotangents, **options)

    monkeypatch.setattr(torch.autograd, "grad", watched)
    model = nn.Sequential(nn.BatchNorm2d(16))
    burnt.swap(model, verify=torch.randn(4, 16, 28, 28).to(memory_format=torch.channels_last))
    burnt.unswap(model)
    assert strides
    assert all(result == given and result[1] == 1 for result, given in strides)
