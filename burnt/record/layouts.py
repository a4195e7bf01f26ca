"""Layouts of other programs for models that are not burnt's own."""

from __future__ import annotations

from torch import Tensor, nn

from burnt.record.arranging.layout import Join, Keep, Layout, Rename, Split, Step

tensorflow_norms = Layout([("**.gamma", "**.weight"), ("**.beta", "**.bias")])
"""Norms with ``gamma`` and ``beta``, as in files converted from TensorFlow (the first BERT models)."""


timm_vit = Layout(
    [
        ("cls_token", "embeddings.cls_token"),
        ("pos_embed", "embeddings.position_embeddings"),
        ("patch_embed.proj", "embeddings.patch_embeddings.projection"),
        ("blocks.*.norm1", "encoder.layer.*.layernorm_before"),
        Split(
            "blocks.*.attn.qkv",
            tuple(f"encoder.layer.*.attention.attention.{name}" for name in ("query", "key", "value")),
        ),
        ("blocks.*.attn.proj", "encoder.layer.*.attention.output.dense"),
        ("blocks.*.norm2", "encoder.layer.*.layernorm_after"),
        ("blocks.*.mlp.fc1", "encoder.layer.*.intermediate.dense"),
        ("blocks.*.mlp.fc2", "encoder.layer.*.output.dense"),
        ("norm", "layernorm"),
        ("head", "classifier"),
    ]
)
"""From timm's files of ViT to Hugging Face's files of ViTModel; `Layout.write` is the way back.

>>> import torch
>>> list(timm_vit.read({"blocks.0.attn.qkv.bias": torch.zeros(6)}))[:2]
['encoder.layer.0.attention.attention.query.bias', 'encoder.layer.0.attention.attention.key.bias']
"""


def burn(model: nn.Module) -> Layout:
    """Return the layout of Burn's records of a model: ``layout="burn"`` of `burnt.load_weights`.

    Linears are stored as ``[in, out]``; norms have ``gamma`` and ``beta``, batch norms no
    ``num_batches_tracked``. Attention is four Linears ``query``, ``key``, ``value`` and ``output``; an LSTM
    or GRU of one layer has two Linears for each gate; layers of transformers have Burn's names. Embeddings
    and convolutions are stored as in torch.

    >>> layout = burn(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
    >>> import torch
    >>> tensors = layout.read({"0.weight": torch.ones(2, 3), "1.gamma": torch.ones(3)})
    >>> {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    {'0.weight': (3, 2), '1.weight': (3,)}
    """
    steps: list[Step] = []
    theirs = {"": ""}  # paths in the model -> paths in the record, both with a dot at the end
    for path, module in model.named_modules(remove_duplicate=False):
        ours = f"{path}." if path else ""
        burns = theirs[ours]
        names = _burn_children(module)
        for name in module._modules:
            theirs[f"{ours}{name}."] = f"{burns}{names.get(name, name)}."
        if _is_attention(module):
            steps += _burn_attention(module, burns, ours)
        elif getattr(module, "weight_hh_l0", None) is not None:
            steps += _burn_recurrent(module, burns, ours)
        elif isinstance(module, nn.Linear):
            steps.append(Rename(f"{burns}weight", f"{ours}weight", transpose=True))
            steps.append((f"{burns}bias", f"{ours}bias"))
        elif _is_norm(module):
            steps += [(f"{burns}gamma", f"{ours}weight"), (f"{burns}beta", f"{ours}bias")]
            if getattr(module, "num_batches_tracked", None) is not None:
                steps.append(Keep(f"{ours}num_batches_tracked"))
            if getattr(module, "running_mean", None) is not None and burns != ours:
                steps += [(f"{burns}{name}", f"{ours}{name}") for name in ("running_mean", "running_var")]
        elif burns != ours:
            own = [
                name
                for name, _ in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
            ]
            steps += [(f"{burns}{name}", f"{ours}{name}") for name in own]
    return Layout(steps)


def _is_attention(module: nn.Module) -> bool:
    return isinstance(getattr(module, "out_proj", None), nn.Linear) and hasattr(module, "in_proj_weight")


def _is_norm(module: nn.Module) -> bool:
    """Whether a module is a norm of torch, burnt or another package: they have no base class in common."""
    weight = getattr(module, "weight", None)
    return "norm" in type(module).__name__.lower() and isinstance(weight, Tensor) and weight.dim() == 1


def _burn_children(module: nn.Module) -> dict[str, str]:
    """Return Burn's names of the parts of torch's and burnt's layers of transformers."""
    kind = type(module).__name__
    feed_forward = {"linear1": "pwff.linear_inner", "linear2": "pwff.linear_outer"}
    # Burn numbers the norms as they follow in a layer that normalises sums. With norm_first, it begins with
    # the last one.
    first = bool(getattr(module, "norm_first", False))
    if kind == "PositionWiseFeedForward":
        return {"linear1": "linear_inner", "linear2": "linear_outer"}
    if kind == "TransformerEncoderLayer":
        norms = {"norm1": "norm_2", "norm2": "norm_1"} if first else {"norm1": "norm_1", "norm2": "norm_2"}
        return {"self_attn": "mha", **feed_forward, **norms}
    if kind == "TransformerDecoderLayer":
        order = (3, 1, 2) if first else (1, 2, 3)
        norms = {f"norm{ours}": f"norm_{burns}" for ours, burns in enumerate(order, 1)}
        return {"multihead_attn": "cross_attn", **feed_forward, **norms}
    if _is_attention(module):
        return {"out_proj": "output"}
    return {}


def _burn_attention(module: nn.Module, burns: str, ours: str) -> list[Step]:
    names = [f"{burns}{name}" for name in ("query", "key", "value")]
    weights = tuple(f"{name}.weight" for name in names)
    sizes = getattr(module, "_sizes", None)  # burnt's, whose keys and values may have fewer heads
    rows = None if sizes is None else tuple(sizes())
    steps: list[Step]
    if getattr(module, "in_proj_weight", None) is not None:
        steps = [Join(weights, f"{ours}in_proj_weight", rows, transpose=True)]
    else:  # keys and values have other sizes than the queries
        own = [f"{ours}{name}_proj_weight" for name in "qkv"]
        steps = [Rename(*pair, transpose=True) for pair in zip(weights, own, strict=True)]
    return [*steps, Join(tuple(f"{name}.bias" for name in names), f"{ours}in_proj_bias", rows)]


def _burn_recurrent(module: nn.Module, burns: str, ours: str) -> list[Step]:
    weight = module.weight_hh_l0
    assert isinstance(weight, Tensor)
    gates = {4: ("input", "forget", "cell", "output"), 3: ("reset", "update", "new")}
    names = gates.get(weight.shape[0] // weight.shape[1])  # torch's order of the rows
    if names is None or hasattr(module, "weight_hh_l1"):
        return []  # Burn's have one layer
    directions = {"": ""}
    if hasattr(module, "weight_hh_l0_reverse"):
        directions = {"forward.": "", "reverse.": "_reverse"}
    steps: list[Step] = []
    for direction, suffix in directions.items():
        for part, source in (("ih", "input"), ("hh", "hidden")):
            linears = [f"{burns}{direction}{name}_gate.{source}_transform" for name in names]
            weights, biases = (tuple(f"{linear}.{kind}" for linear in linears) for kind in ("weight", "bias"))
            steps.append(Join(weights, f"{ours}weight_{part}_l0{suffix}", transpose=True))
            steps.append(Join(biases, f"{ours}bias_{part}_l0{suffix}"))
    return steps
