"""How long `burnt.check` takes on a transformer of a billion parameters, cold and warm.

    python benchmarks/check.py

Cold is the first use of meta tensors in a process, after `import torch, burnt.inspect`; warm is the median of
the next five. The model is an ordinary one on the CPU, built without filling its weights, so that nothing
that a check needs is loaded before and untouched weights take no memory. Resident memory is read before and
after, because a check must not allocate tensors.
"""

from __future__ import annotations

import statistics
from unittest import mock

import psutil
import torch
from torch import nn

from burnt.inspect import TensorSpec, check, num_params, summary


def transformer(layers: int = 16, width: int = 2048, vocabulary: int = 50_000) -> nn.Module:
    """An encoder with embedding and head, its large weights uninitialised."""
    keep = {"autospec": True, "side_effect": lambda tensor, *_, **__: tensor}
    with (
        mock.patch.object(torch.Tensor, "uniform_", **keep),
        mock.patch.object(torch.Tensor, "normal_", **keep),
    ):
        blocks = [nn.TransformerEncoderLayer(width, 16, 4 * width, batch_first=True) for _ in range(layers)]
        return nn.Sequential(nn.Embedding(vocabulary, width), *blocks, nn.Linear(width, vocabulary))


def resident_mb() -> float:
    return psutil.Process().memory_info().rss / 2**20


def main() -> None:
    model = transformer()
    tokens = TensorSpec((8, 512), torch.int64)
    cold = check(model, tokens).seconds
    before = resident_mb()
    warm = statistics.median(check(model, tokens).seconds for _ in range(5))
    print(f"model            {num_params(model) / 1e9:.2f} B parameters, batch 8 and 9 of 512 tokens")
    print(f"check, cold      {cold:.2f} s")
    print(f"check, warm      {warm:.2f} s")
    print(f"resident memory  {resident_mb() - before:+.0f} MB over the warm checks")
    print(f"forward          {summary(model, tokens).flops / 1e12:.1f} TFLOP, by burnt.inspect.summary")


if __name__ == "__main__":
    main()
