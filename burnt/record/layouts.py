"""Layouts of other programs for models that are not burnt's own."""

from __future__ import annotations

from torch import Tensor, nn

from burnt.record.layout import Join, Keep, Layout, Rename, Split, Step

__all__ = ["burn", "tensorflow_norms", "timm_vit"]

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
    ``num_batches_tracked``. Attention of burnt.nn and torch.nn is stored as four Linears ``query``, ``key``,
    ``value`` and ``output``. Embeddings and convolutions are stored as in torch.

    >>> layout = burn(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
    >>> import torch
    >>> tensors = layout.read({"0.weight": torch.ones(2, 3), "1.gamma": torch.ones(3)})
    >>> {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    {'0.weight': (3, 2), '1.weight': (3,)}
    """
    steps: list[Step] = []
    outputs: set[str] = set()  # paths of attention's last Linears
    for path, module in model.named_modules():
        dot = f"{path}." if path else ""
        if isinstance(getattr(module, "out_proj", None), nn.Linear) and hasattr(module, "in_proj_weight"):
            steps += _attention_steps(module, dot)
            outputs.add(f"{dot}out_proj")
        elif isinstance(module, nn.Linear):
            if path not in outputs:
                steps.append(Rename(f"{dot}weight", f"{dot}weight", transpose=True))
        elif _is_norm(module):
            steps += [(f"{dot}gamma", f"{dot}weight"), (f"{dot}beta", f"{dot}bias")]
            if getattr(module, "num_batches_tracked", None) is not None:
                steps.append(Keep(f"{dot}num_batches_tracked"))
    return Layout(steps)


def _is_norm(module: nn.Module) -> bool:
    """Whether a module is a norm of torch, burnt or another package: they have no base class in common."""
    weight = getattr(module, "weight", None)
    return "norm" in type(module).__name__.lower() and isinstance(weight, Tensor) and weight.dim() == 1


def _attention_steps(module: nn.Module, dot: str) -> list[Step]:
    names = [f"{dot}{name}" for name in ("query", "key", "value")]
    weights = tuple(f"{name}.weight" for name in names)
    sizes = getattr(module, "_sizes", None)  # burnt's, whose keys and values may have fewer heads
    rows = None if sizes is None else tuple(sizes())
    steps: list[Step]
    if getattr(module, "in_proj_weight", None) is not None:
        steps = [Join(weights, f"{dot}in_proj_weight", rows, transpose=True)]
    else:  # keys and values have other sizes than the queries
        own = [f"{dot}{name}_proj_weight" for name in "qkv"]
        steps = [Rename(*pair, transpose=True) for pair in zip(weights, own, strict=True)]
    return [
        *steps,
        Join(tuple(f"{name}.bias" for name in names), f"{dot}in_proj_bias", rows),
        Rename(f"{dot}output.weight", f"{dot}out_proj.weight", transpose=True),
        (f"{dot}output.bias", f"{dot}out_proj.bias"),
    ]
