"""Ops whose node is one call of a function: its inputs, then its attributes, in a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from burnt.onnx.importer.build import Build
from burnt.onnx.importer.node import Node
from burnt.onnx.importer.registry import handler

ML, MS, TRAINING = "ai.onnx.ml", "com.microsoft", "ai.onnx.preview.training"


@dataclass(frozen=True)
class _Plain:
    """A call of a function."""

    function: str
    # of the node, with their defaults: an argument each, after the inputs. A default that is a bool or
    # text is that of the argument, whose attribute is an integer or bytes.
    attributes: tuple[tuple[str, Any], ...] = ()
    hint: str = "x"  # what the results are called
    inputs: int | None = None  # how many the function takes, None for those that the node has
    outputs: int = 1  # how many results the function returns
    device: bool = False  # whether it takes the device as a keyword
    ignored: tuple[str, ...] = ()  # attributes that change nothing

    def __call__(self, build: Build, node: Node) -> Any:
        node.ignore(*self.ignored)
        inputs = range(node.num_inputs if self.inputs is None else self.inputs)
        values = [build.tensor(node, i) for i in inputs]
        values += [_attribute(node, name, default) for name, default in self.attributes]
        extra = {"device": build.device()} if self.device else {}
        if self.outputs > 1:
            return build.calls(self.function, *values, count=self.outputs, hint=self.hint, **extra)
        return build.call(self.function, *values, hint=self.hint, **extra)


def _attribute(node: Node, name: str, default: Any) -> Any:
    if isinstance(default, bool):
        return bool(node.attr(name, int(default)))
    return node.text(name, default) if isinstance(default, str) else node.attr(name, default)


_CONV = (("strides", None), ("pads", None), ("dilations", None), ("group", 1), ("auto_pad", "NOTSET"))
_LOSS = (("reduction", "mean"), ("ignore_index", None))
_SCATTER = (("axis", 0), ("reduction", "none"))
_BLOCKS = (("blocksize", None), ("mode", "DCR"))

_OPS: dict[tuple[str, str], _Plain] = {
    # activations
    ("", "LeakyRelu"): _Plain("F.leaky_relu", (("alpha", 0.01),), "leaky_relu"),
    ("", "Elu"): _Plain("F.elu", (("alpha", 1.0),), "elu"),
    ("", "Celu"): _Plain("F.celu", (("alpha", 1.0),), "celu"),
    ("", "Shrink"): _Plain("ops.shrink", (("lambd", 0.5), ("bias", 0.0)), "shrink"),
    ("", "SwiGLU"): _Plain("ops.swiglu", (("alpha", 1.0),), "gated"),
    (MS, "QuickGelu"): _Plain("ops.quick_gelu", (("alpha", 1.702),), "gelu"),
    # elements and axes
    ("", "GatherElements"): _Plain("ops.gather_elements", (("axis", 0),), "gathered"),
    ("", "Scatter"): _Plain("ops.scatter_elements", _SCATTER, "scattered"),
    ("", "ScatterElements"): _Plain(
        "ops.scatter_elements", (("axis", 0), ("reduction", "none")), "scattered"
    ),
    ("", "ScatterND"): _Plain("ops.scatter_nd", (("reduction", "none"),), "scattered"),
    ("", "DepthToSpace"): _Plain("ops.depth_to_space", _BLOCKS),
    ("", "SpaceToDepth"): _Plain("ops.space_to_depth", _BLOCKS),
    ("", "ReverseSequence"): _Plain(
        "ops.reverse_sequence", (("time_axis", 0), ("batch_axis", 1)), "reversed"
    ),
    ("", "Compress"): _Plain("ops.compress", (("axis", None),), "selected"),
    ("", "NonZero"): _Plain("ops.nonzero", (), "indices"),
    ("", "Unique"): _Plain("ops.unique", (("axis", None), ("sorted", True)), "unique", outputs=4),
    # convolutions and pooling
    ("", "CausalConvWithState"): _Plain(
        "ops.causal_conv_with_state", (("activation", "none"),), "conv", inputs=4, outputs=2
    ),
    ("", "MaxRoiPool"): _Plain(
        "ops.max_roi_pool", (("pooled_shape", None), ("spatial_scale", 1.0)), "pooled"
    ),
    # norms and losses
    ("", "LRN"): _Plain(
        "ops.local_response_norm", (("size", None), ("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0)), "norm"
    ),
    ("", "LpNormalization"): _Plain("ops.lp_normalize", (("axis", -1), ("p", 2)), "norm"),
    ("", "MeanVarianceNormalization"): _Plain("ops.mean_variance_normalize", (("axes", [0, 2, 3]),), "norm"),
    ("", "NegativeLogLikelihoodLoss"): _Plain("ops.negative_log_likelihood", _LOSS, "loss", inputs=3),
    ("", "SoftmaxCrossEntropyLoss"): _Plain("ops.softmax_cross_entropy", _LOSS, "loss", inputs=3, outputs=2),
    # quantized values
    ("", "DynamicQuantizeLinear"): _Plain("ops.dynamic_quantize_linear", (), "quantized", outputs=3),
    ("", "QLinearMatMul"): _Plain("ops.qlinear_matmul", (), "matmul"),
    ("", "MatMulInteger"): _Plain("ops.matmul_integer", (), "matmul"),
    ("", "ConvInteger"): _Plain("ops.conv_integer", _CONV, "conv", inputs=4),
    ("", "QLinearConv"): _Plain("ops.qlinear_conv", _CONV, "conv", inputs=9),
    (MS, "MatMulIntegerToFloat"): _Plain("ops.matmul_integer_to_float", (), "matmul"),
    (MS, "DynamicQuantizeMatMul"): _Plain("ops.dynamic_quantize_matmul", (), "matmul"),
    # sequences and optionals
    ("", "SequenceConstruct"): _Plain("ops.sequence", (), "sequence"),
    ("", "SequenceEmpty"): _Plain("ops.sequence", (), "sequence", ignored=("dtype",)),
    ("", "SplitToSequence"): _Plain(
        "ops.split_sequence", (("axis", 0), ("keepdims", True)), "parts", inputs=2
    ),
    ("", "ConcatFromSequence"): _Plain(
        "ops.concat_sequence", (("axis", None), ("new_axis", False)), "joined"
    ),
    ("", "OptionalHasElement"): _Plain("ops.has_element", (), "has_element", inputs=1, device=True),
    ("", "OptionalGetElement"): _Plain("ops.get_element", (), "element"),
    # attention and caches
    (MS, "EmbedLayerNormalization"): _Plain(
        "ops.embed_layer_norm", (("epsilon", 1e-12),), "embedded", inputs=9, outputs=3
    ),
    # texts
    ("", "StringConcat"): _Plain("ops.string_concat", (), "text"),
    ("", "StringSplit"): _Plain(
        "ops.string_split", (("delimiter", None), ("maxsplit", None)), "parts", outputs=2, device=True
    ),
    # scikit-learn
    (ML, "ArrayFeatureExtractor"): _Plain("ops.pick", (), "picked"),
    (ML, "Normalizer"): _Plain("ops.normalize_rows", (("norm", "MAX"),), "normalized"),
}

for (_domain, _op), _plain in _OPS.items():
    handler(_op, domain=_domain)(_plain)
