"""torch's own samples of its modules (`module_db`), run through burnt's twins.

Every sample of every torch class that has a twin: outputs, gradients and (but for attention) second gradients
against the torch class, and the output against the sample's reference where torch gives one.
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.common_modules import ModuleInfo, ModuleInput, module_db
from torch.utils._pytree import tree_map_only

from burnt import nn
from burnt.errors import ShapeError, UnsupportedError


class Refused(Exception):
    """The sample asks for an argument that the twin does not have."""


def same_arguments(twin: type, **left_out: Any) -> Callable[..., torch.nn.Module]:
    """Builds a twin from torch's arguments; those it left out must have torch's default."""

    def build(torch_class: type, *args: Any, **kwargs: Any) -> torch.nn.Module:
        bound = inspect.signature(torch_class).bind(*args, **kwargs).arguments
        known = inspect.signature(twin).parameters
        for name in [name for name in bound if name not in known]:
            if bound.pop(name) != left_out[name]:
                raise Refused(name)
        return twin(**bound)

    return build


def prelu(torch_class: type, num_parameters: int = 1, init: float = 0.25, **placed: Any) -> torch.nn.Module:
    return nn.Prelu(num_parameters, init, **placed)


def from_torch(twin: Any) -> Callable[..., torch.nn.Module]:
    """Builds a twin by its adapter, from torch's module."""

    def build(torch_class: type, *args: Any, **kwargs: Any) -> torch.nn.Module:
        try:
            return twin.from_torch(torch_class(*args, **kwargs))
        except UnsupportedError as error:
            raise Refused(error.what) from None

    return build


def linear_cross_entropy(torch_class: type, *args: Any, **kwargs: Any) -> torch.nn.Module:
    """Builds LinearCrossEntropy, whose `ignore_index` is never None."""
    del kwargs["options"]
    if kwargs["ignore_index"] is None:
        kwargs["ignore_index"] = -100
    return nn.LinearCrossEntropy(*args, **kwargs)


def plainly(layer: Any, theirs: Any, *args: Any, **kwargs: Any) -> Any:
    return layer(*args, **kwargs)


def attention(layer: Any, theirs: Any, query: Any, key: Any, value: Any, **masks: Any) -> Any:
    return layer(query, key, value, **masks), layer.attention_weights(query, key, **masks)


def recurrent(layer: Any, theirs: Any, input: Any, hx: Any = None) -> Any:
    if theirs.batch_first or not isinstance(input, torch.Tensor) or input.dim() == 2:
        return layer(input, hx)
    output, last = layer(input.transpose(0, 1), hx)
    return output.transpose(0, 1), last


def encoder(layer: Any, theirs: Any, source: Any, **masks: Any) -> Any:
    names = {"src_mask": "attn_mask", "mask": "attn_mask", "src_key_padding_mask": "key_padding_mask"}
    masks = {names[name]: mask for name, mask in masks.items()}
    first = theirs.layers[0] if hasattr(theirs, "layers") else theirs
    if source.dim() == 3 and not first.self_attn.batch_first:
        return layer(source.transpose(0, 1), **masks).transpose(0, 1)
    return layer(source, **masks)


def decoder(layer: Any, theirs: Any, target: Any, memory: Any, **masks: Any) -> Any:
    names = {
        "tgt_mask": "attn_mask",
        "tgt_key_padding_mask": "key_padding_mask",
        "memory_mask": "memory_mask",
        "memory_key_padding_mask": "memory_key_padding_mask",
    }
    masks = {names[name]: mask for name, mask in masks.items()}
    if target.dim() == 3 and not theirs.self_attn.batch_first:
        target, memory = target.transpose(0, 1), memory.transpose(0, 1)
        return layer(target, memory, is_causal=False, **masks).transpose(0, 1)
    return layer(target, memory, is_causal=False, **masks)


def transformer(layer: Any, theirs: Any, source: Any, target: Any, **masks: Any) -> Any:
    masks = {name.replace("src", "source").replace("tgt", "target"): mask for name, mask in masks.items()}
    padding = masks.get("source_key_padding_mask")
    if padding is not None and masks.get("memory_key_padding_mask") is None:
        masks["memory_key_padding_mask"] = torch.zeros_like(padding)  # torch does not apply it to the memory
    if target.dim() == 3 and not theirs.batch_first:
        source, target = source.transpose(0, 1), target.transpose(0, 1)
        return layer(source, target, is_causal=False, **masks).transpose(0, 1)
    return layer(source, target, is_causal=False, **masks)


deprecated = {"size_average": None, "reduce": None}
TWINS: dict[str, Callable[..., torch.nn.Module]] = {
    "AdaptiveAvgPool1d": same_arguments(nn.AdaptiveAvgPool1d),
    "AdaptiveAvgPool2d": same_arguments(nn.AdaptiveAvgPool2d),
    "BCELoss": same_arguments(nn.BinaryCrossEntropy, **deprecated),
    "BCEWithLogitsLoss": same_arguments(nn.BinaryCrossEntropyWithLogits, **deprecated),
    "AdaptiveAvgPool3d": same_arguments(nn.AdaptiveAvgPool3d),
    "AdaptiveMaxPool1d": same_arguments(nn.AdaptiveMaxPool1d),
    "AdaptiveMaxPool2d": same_arguments(nn.AdaptiveMaxPool2d),
    "AdaptiveMaxPool3d": same_arguments(nn.AdaptiveMaxPool3d),
    "AvgPool1d": same_arguments(nn.AvgPool1d),
    "AvgPool2d": same_arguments(nn.AvgPool2d),
    "AvgPool3d": same_arguments(nn.AvgPool3d),
    "BatchNorm1d": same_arguments(nn.BatchNorm),
    "BatchNorm2d": same_arguments(nn.BatchNorm),
    "BatchNorm3d": same_arguments(nn.BatchNorm),
    "Bilinear": same_arguments(nn.Bilinear),
    "CELU": same_arguments(nn.Celu),
    "CircularPad1d": same_arguments(nn.CircularPad1d),
    "CircularPad2d": same_arguments(nn.CircularPad2d),
    "CircularPad3d": same_arguments(nn.CircularPad3d),
    "ConstantPad1d": same_arguments(nn.ConstantPad1d),
    "ConstantPad2d": same_arguments(nn.ConstantPad2d),
    "ConstantPad3d": same_arguments(nn.ConstantPad3d),
    "Conv1d": same_arguments(nn.Conv1d),
    "Conv2d": same_arguments(nn.Conv2d),
    "CTCLoss": same_arguments(nn.Ctc),
    "CosineEmbeddingLoss": same_arguments(nn.CosineEmbedding, **deprecated),
    "Conv3d": same_arguments(nn.Conv3d),
    "ConvTranspose1d": same_arguments(nn.ConvTranspose1d),
    "ConvTranspose2d": same_arguments(nn.ConvTranspose2d),
    "ConvTranspose3d": same_arguments(nn.ConvTranspose3d),
    "CrossEntropyLoss": same_arguments(nn.CrossEntropy, **deprecated),
    "ELU": same_arguments(nn.Elu),
    "Embedding": same_arguments(nn.Embedding),
    "GRU": from_torch(nn.Gru),
    "GRUCell": same_arguments(nn.GruCell),
    "GELU": same_arguments(nn.Gelu),
    "GLU": same_arguments(nn.Glu),
    "Hardshrink": same_arguments(nn.Hardshrink),
    "Hardswish": same_arguments(nn.Hardswish),
    "Hardtanh": same_arguments(nn.Hardtanh, min_value=None, max_value=None),
    "GaussianNLLLoss": same_arguments(nn.GaussianNll),
    "HingeEmbeddingLoss": same_arguments(nn.HingeEmbedding, **deprecated),
    "HuberLoss": same_arguments(nn.Huber),
    "KLDivLoss": same_arguments(nn.KlDiv, **deprecated),
    "L1Loss": same_arguments(nn.L1, **deprecated),
    "LSTM": from_torch(nn.Lstm),
    "LSTMCell": same_arguments(nn.LstmCell),
    "GroupNorm": same_arguments(nn.GroupNorm),
    "InstanceNorm1d": same_arguments(nn.InstanceNorm),
    "InstanceNorm2d": same_arguments(nn.InstanceNorm),
    "InstanceNorm3d": same_arguments(nn.InstanceNorm),
    "LPPool1d": same_arguments(nn.LpPool1d),
    "LPPool2d": same_arguments(nn.LpPool2d),
    "LPPool3d": same_arguments(nn.LpPool3d),
    "LayerNorm": same_arguments(nn.LayerNorm),
    "LeakyReLU": same_arguments(nn.LeakyRelu),
    "LazyConv1d": same_arguments(nn.LazyConv1d),
    "LazyConv2d": same_arguments(nn.LazyConv2d),
    "LazyConv3d": same_arguments(nn.LazyConv3d),
    "LazyConvTranspose1d": same_arguments(nn.LazyConvTranspose1d),
    "LazyConvTranspose2d": same_arguments(nn.LazyConvTranspose2d),
    "LazyConvTranspose3d": same_arguments(nn.LazyConvTranspose3d),
    "Linear": same_arguments(nn.Linear),
    "LogSigmoid": same_arguments(nn.LogSigmoid),
    "LogSoftmax": same_arguments(nn.LogSoftmax),
    "LinearCrossEntropyLoss": linear_cross_entropy,
    "LocalResponseNorm": same_arguments(nn.LocalResponseNorm),
    "MSELoss": same_arguments(nn.Mse, **deprecated),
    "MarginRankingLoss": same_arguments(nn.MarginRanking, **deprecated),
    "MaxPool1d": same_arguments(nn.MaxPool1d),
    "MaxPool2d": same_arguments(nn.MaxPool2d),
    "Mish": same_arguments(nn.Mish),
    "MaxPool3d": same_arguments(nn.MaxPool3d),
    "MultiheadAttention": from_torch(nn.MultiHeadAttention),
    "PReLU": prelu,
    "MultiLabelMarginLoss": same_arguments(nn.MultiLabelMargin, **deprecated),
    "MultiLabelSoftMarginLoss": same_arguments(nn.MultiLabelSoftMargin, **deprecated),
    "MultiMarginLoss": same_arguments(nn.MultiMargin, **deprecated),
    "NLLLoss": same_arguments(nn.Nll, **deprecated),
    "PoissonNLLLoss": same_arguments(nn.PoissonNll, **deprecated),
    "RNN": from_torch(nn.Rnn),
    "RNNCell": same_arguments(nn.RnnCell),
    "RMSNorm": same_arguments(nn.RmsNorm),
    "ReLU": same_arguments(nn.Relu),
    "ReLU6": same_arguments(nn.Relu6),
    "ReflectionPad1d": same_arguments(nn.ReflectionPad1d),
    "ReflectionPad2d": same_arguments(nn.ReflectionPad2d),
    "ReflectionPad3d": same_arguments(nn.ReflectionPad3d),
    "ReplicationPad1d": same_arguments(nn.ReplicationPad1d),
    "ReplicationPad2d": same_arguments(nn.ReplicationPad2d),
    "ReplicationPad3d": same_arguments(nn.ReplicationPad3d),
    "SELU": same_arguments(nn.Selu),
    "SiLU": same_arguments(nn.Silu),
    "Sigmoid": same_arguments(nn.Sigmoid),
    "Softmax": same_arguments(nn.Softmax),
    "Softmax2d": same_arguments(nn.Softmax2d),
    "Softmin": same_arguments(nn.Softmin),
    "Softplus": same_arguments(nn.Softplus),
    "Softshrink": same_arguments(nn.Softshrink),
    "Softsign": same_arguments(nn.Softsign),
    "Tanh": same_arguments(nn.Tanh),
    "Tanhshrink": same_arguments(nn.Tanhshrink),
    "Threshold": same_arguments(nn.Threshold),
    "Transformer": from_torch(nn.Transformer),
    "TransformerDecoderLayer": from_torch(nn.TransformerDecoderLayer),
    "SmoothL1Loss": same_arguments(nn.SmoothL1, **deprecated),
    "SoftMarginLoss": same_arguments(nn.SoftMargin, **deprecated),
    "TransformerEncoder": from_torch(nn.TransformerEncoder),
    "TransformerEncoderLayer": from_torch(nn.TransformerEncoderLayer),
    "ZeroPad1d": same_arguments(nn.ZeroPad1d),
    "ZeroPad2d": same_arguments(nn.ZeroPad2d),
    "ZeroPad3d": same_arguments(nn.ZeroPad3d),
}
CALLS: dict[str, Callable[..., Any]] = {
    "GRU": recurrent,
    "LSTM": recurrent,
    "MultiheadAttention": attention,
    "Transformer": transformer,
    "TransformerDecoderLayer": decoder,
    "RNN": recurrent,
    "TransformerEncoder": encoder,
    "TransformerEncoderLayer": encoder,
}


# What torch differentiates once, beside the CPU's fused attention.
ONCE = ("CTCLoss", "MultiLabelMarginLoss", "MultiMarginLoss")

# Samples of MultiheadAttention come in eights of (bias, add_bias_kv, add_zero_attn).
EXPECTED: dict[tuple[str, int], tuple[type[Exception], str]] = {
    **{
        ("MultiheadAttention", eight * 8 + i): (Refused, "learned extra keys do not exist in burnt")
        for eight in (0, 1, 4, 5)
        for i in range(8)
    },
    # InstanceNorm is of any rank, so that a sample without batch axis cannot be told from a batch.
    **{
        (f"InstanceNorm{axes}d", index): (ShapeError, "the channels are first")
        for axes in (1, 2, 3)
        for index in (2, 3)
    },
}

INFOS: dict[str, ModuleInfo] = {info.module_cls.__name__: info for info in module_db}
TWINS = {name: twin for name, twin in TWINS.items() if name in INFOS}  # older versions of torch lack some


@functools.cache
def samples(name: str, training: bool) -> list[ModuleInput]:
    torch.manual_seed(0)
    info = INFOS[name]
    found = info.module_inputs_func(info, "cpu", torch.float64, requires_grad=True, training=training)
    # The options of LinearCrossEntropyLoss say how torch divides the work, of which there are 600 samples.
    return [sample for sample in found if not sample.constructor_input.kwargs.get("options")]


CASES = [
    pytest.param(name, training, index, id=f"{name}-{'train' if training else 'eval'}-{index}")
    for name in TWINS
    for training in (True, False)
    for index in range(len(samples(name, training)))
]


def leaves(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    items = value if isinstance(value, tuple | list) else value.values() if isinstance(value, dict) else []
    return [leaf for item in items for leaf in leaves(item)]


def gradients(
    output: Any, module: torch.nn.Module, inputs: list[torch.Tensor], twice: bool
) -> list[torch.Tensor | None]:
    wanted = [t for t in [*inputs, *module.parameters()] if t.requires_grad]
    outputs = [t for t in leaves(output) if t.requires_grad]
    total = sum((t * torch.linspace(-1, 2, t.numel(), dtype=t.dtype).view_as(t)).sum() for t in outputs)
    if not isinstance(total, torch.Tensor):
        return []
    first = torch.autograd.grad(total, wanted, create_graph=True, allow_unused=True)
    curved = [g for g in first if g is not None and g.requires_grad]
    if not curved or not twice:
        return list(first)
    second = torch.autograd.grad(sum((g**2).sum() for g in curved), wanted, allow_unused=True)
    return [*first, *second]


@pytest.fixture(autouse=True)
def without_fast_path() -> Iterator[None]:
    """Without gradients, torch's encoder would give zeros for padding, which its decoder attends to."""
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(True)


@pytest.mark.sample(88)
@pytest.mark.parametrize(("name", "training", "index"), CASES)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides the total loss by both")
def test_sample(name: str, training: bool, index: int) -> None:
    expected = EXPECTED.get((name, index))
    if expected is None:
        run(name, training, samples(name, training)[index])
    else:
        with pytest.raises(expected[0]):
            run(name, training, samples(name, training)[index])


def without_zero(module: torch.nn.Module, result: Any) -> Any:
    """Leave out the weights of the key of zeros, which burnt does not return."""
    return (result[0], result[1][..., :-1]) if getattr(module, "add_zero_attn", False) else result


def run(name: str, training: bool, sample: ModuleInput) -> None:
    torch_class = INFOS[name].module_cls
    args, kwargs = sample.constructor_input.args, dict(sample.constructor_input.kwargs)
    if "dtype" in inspect.signature(torch_class).parameters or issubclass(torch_class, torch.nn.RNNBase):
        kwargs["dtype"] = torch.float64
    torch.manual_seed(1)
    theirs = torch_class(*args, **kwargs).train(training)
    torch.manual_seed(1)
    ours = TWINS[name](torch_class, *args, **kwargs).train(training)
    ours.load_state_dict(theirs.state_dict())

    args, kwargs = sample.forward_input.args, sample.forward_input.kwargs
    inputs = leaves([args, kwargs])
    extra = {"average_attn_weights": False} if name == "MultiheadAttention" else {}
    torch.manual_seed(2)
    output = CALLS.get(name, plainly)(ours, theirs, *args, **kwargs)
    torch.manual_seed(2)
    expected = without_zero(theirs, theirs(*args, **kwargs, **extra))
    torch.testing.assert_close(output, expected, equal_nan=True)
    twice = name not in CALLS and name not in ONCE
    torch.testing.assert_close(
        gradients(output, ours, inputs, twice),
        gradients(expected, theirs, inputs, twice),
        atol=1e-6,
        rtol=1e-6,
        equal_nan=True,
    )
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())
    if sample.reference_fn is not None:
        with torch.no_grad():
            plain = [tree_map_only(torch.Tensor, torch.Tensor.detach, tensors) for tensors in (args, kwargs)]
            reference = sample.reference_fn(theirs, *plain[0], **plain[1])
        if name == "MultiheadAttention":
            output = output[0], output[1].mean(0)
            reference = without_zero(theirs, reference)
        torch.testing.assert_close(output, reference, atol=1e-6, rtol=1e-6, equal_nan=True)


def test_no_twin_is_forgotten() -> None:
    layers = [layer for layer in map(vars(nn).get, nn.__all__) if isinstance(layer, type)]
    bases = {base.__name__ for layer in layers for base in layer.__mro__}
    assert bases & INFOS.keys() <= TWINS.keys()
    assert {name for name, _ in EXPECTED} <= TWINS.keys()
