"""Ops whose node is one call of a function: its inputs, then its attributes, in a table."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

from burnt.onnx.importer.build import Build
from burnt.onnx.importer.matching import DOMAIN
from burnt.onnx.importer.node import Node, handler
from burnt.onnx.importer.ops.windows import WINDOW

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
    options: tuple[tuple[str, Any] | tuple[str, Any, str], ...] = ()  # keywords, see `Node.options`
    known: tuple[int, ...] = ()  # inputs that are integers, taken as a list where they are known

    def __call__(self, build: Build, node: Node) -> Any:
        node.ignore(*self.ignored)
        inputs = range(node.num_inputs if self.inputs is None else self.inputs)
        values = [build.integers(node, i) if i in self.known else build.tensor(node, i) for i in inputs]
        values += [node.given(name, default) for name, default in self.attributes]
        extra = node.options(*self.options) | ({"device": build.device()} if self.device else {})
        if self.outputs > 1:
            return build.calls(self.function, *values, count=self.outputs, hint=self.hint, **extra)
        return build.call(self.function, *values, hint=self.hint, **extra)


_STEPS = (("strides", None), ("pads", None), ("dilations", None))
_CONV = (*_STEPS, ("group", 1), ("auto_pad", "NOTSET"))
_SCATTER = (("axis", 0), ("reduction", "none"))
_BLOCKS = (("blocksize", None), ("mode", "DCR"))
_GELU = (("approximate", "none"),)

_OPS: dict[tuple[str, str], _Plain] = {
    # activations
    ("", "LeakyRelu"): _Plain("F.leaky_relu", (("alpha", 0.01),), "leaky_relu"),
    ("", "Elu"): _Plain("F.elu", (("alpha", 1.0),), "elu"),
    ("", "Celu"): _Plain("F.celu", (("alpha", 1.0),), "celu"),
    ("", "Shrink"): _Plain("ops.shrink", (("lambd", 0.5), ("bias", 0.0)), "shrink"),
    ("", "Gelu"): _Plain("F.gelu", (), "gelu", options=_GELU),
    (MS, "Gelu"): _Plain("F.gelu", (), "gelu", options=_GELU),
    (DOMAIN, "Silu"): _Plain("F.silu", (), "silu"),
    (DOMAIN, "QuickGelu"): _Plain("ops.quick_gelu", (), "quickgelu"),
    (DOMAIN, "Mish"): _Plain("F.mish", (), "mish"),
    (DOMAIN, "HardSwish"): _Plain("F.hardswish", (), "hardswish"),
    (DOMAIN, "Relu6"): _Plain("F.relu6", (), "relu6"),
    ("", "SwiGLU"): _Plain("ops.swiglu", (("alpha", 1.0),), "gated"),
    (DOMAIN, "SwiGlu"): _Plain("ops.swiglu", (), "gated"),
    (DOMAIN, "GeGlu"): _Plain("ops.geglu", (), "gated", options=_GELU),
    (MS, "QuickGelu"): _Plain("ops.quick_gelu", (("alpha", 1.702),), "gelu"),
    # elements and axes
    ("", "GatherElements"): _Plain("ops.gather_elements", (("axis", 0),), "gathered"),
    ("", "Scatter"): _Plain("ops.scatter_elements", _SCATTER, "scattered"),
    ("", "ScatterElements"): _Plain("ops.scatter_elements", _SCATTER, "scattered"),
    ("", "ScatterND"): _Plain("ops.scatter_nd", (("reduction", "none"),), "scattered"),
    ("", "DepthToSpace"): _Plain("ops.depth_to_space", _BLOCKS),
    ("", "SpaceToDepth"): _Plain("ops.space_to_depth", _BLOCKS),
    ("", "ReverseSequence"): _Plain(
        "ops.reverse_sequence", (("time_axis", 0), ("batch_axis", 1)), "reversed"
    ),
    ("", "Compress"): _Plain("ops.compress", (("axis", None),), "selected"),
    ("", "Tile"): _Plain("ops.tile", (), "tiled", known=(1,)),
    ("", "NonZero"): _Plain("ops.nonzero", (), "indices"),
    ("", "Unique"): _Plain("ops.unique", (("axis", None), ("sorted", True)), "unique", outputs=4),
    # convolutions and pooling
    ("", "DeformConv"): _Plain(
        "ops.deform_conv", (*_STEPS, ("group", 1), ("offset_group", 1)), "conv", inputs=5
    ),
    ("", "LpPool"): _Plain("ops.lp_pool", (("kernel_shape", None), ("p", 2)), "pooled", options=WINDOW),
    ("", "MaxRoiPool"): _Plain(
        "ops.max_roi_pool", (("pooled_shape", None), ("spatial_scale", 1.0)), "pooled"
    ),
    # norms, and sampling
    ("", "LRN"): _Plain(
        "ops.local_response_norm", (("size", None), ("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0)), "norm"
    ),
    ("", "LpNormalization"): _Plain("ops.lp_normalize", (("axis", -1), ("p", 2)), "norm"),
    ("", "MeanVarianceNormalization"): _Plain("ops.mean_variance_normalize", (("axes", [0, 2, 3]),), "norm"),
    ("", "AffineGrid"): _Plain("ops.affine_grid", (("align_corners", False),), "grid", known=(1,)),
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
    ("", "RotaryEmbedding"): _Plain(
        "ops.rotary_embedding",
        (),
        "rotated",
        options=(("interleaved", False), ("rotary_dim", 0, "rotary_embedding_dim"), ("num_heads", 0)),
    ),
    (DOMAIN, "Rotary"): _Plain("ops.rotate", (), "rotated", options=(("interleaved", False),)),
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

if importlib.util.find_spec("PIL") is not None:
    _OPS["", "ImageDecoder"] = _Plain("ops.decode_image", (("pixel_format", "RGB"),), "image")

for (_domain, _op), _plain in _OPS.items():
    handler(_op, domain=_domain)(_plain)
