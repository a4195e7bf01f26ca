"""`bmm`: errors and empty inputs, like `torch.bmm`."""

from __future__ import annotations

import pytest
import torch

from burnt import kernels
from burnt.errors import InputRuntimeError

BATCH = torch.ones(2, 3, 4)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (BATCH[0], BATCH[0].t()),
        (BATCH, BATCH[0].t()),
        (BATCH, BATCH.mT[:1]),
        (BATCH, BATCH),
        (BATCH, BATCH.mT.double()),
        (BATCH.expand(1, 2, 3, 4), BATCH.mT.expand(1, 2, 4, 3)),
    ],
)
def test_rejects_what_torch_rejects(a: torch.Tensor, b: torch.Tensor) -> None:
    with pytest.raises(RuntimeError):
        torch.bmm(a, b)
    with pytest.raises(InputRuntimeError) as caught:
        kernels.bmm(a, b)
    assert caught.value.where == "burnt.kernels.bmm"


def test_empty_batches_and_inner_dimensions_match_torch() -> None:
    for shapes in (((0, 3, 4), (0, 4, 5)), ((2, 3, 0), (2, 0, 5)), ((2, 0, 4), (2, 4, 5))):
        a, b = (torch.ones(shape) for shape in shapes)
        torch.testing.assert_close(kernels.bmm(a, b), torch.bmm(a, b))
