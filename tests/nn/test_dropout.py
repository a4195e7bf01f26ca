import pytest
import torch

from burnt import kernels, nn
from burnt.codegen.runtime.c_compiler import find_compiler
from burnt.kernels.dispatch.generated import Generated

LARGE = 1 << 16  # elements from which kernels are generated


@pytest.mark.skipif(find_compiler() is None, reason="no C compiler works here: the library serves")
def test_a_large_one_is_generated_and_follows_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = kernels.dropout.chosen(torch.ones(LARGE), 0.3, True)
    assert isinstance(chosen.candidate, Generated)
    layer, x = nn.Dropout(0.3), torch.ones(LARGE, requires_grad=True)
    torch.manual_seed(3)
    first, second = layer(x), layer(x)
    torch.manual_seed(3)
    assert torch.equal(layer(x), first)
    assert not torch.equal(first, second)
    assert abs(float((first == 0).float().mean()) - 0.3) < 0.01
    (gradient,) = torch.autograd.grad(first.sum(), x)
    assert torch.equal(gradient, first.detach())


def test_in_place_in_evaluation_and_compiled_it_is_torchs() -> None:
    x = torch.ones(LARGE)
    layer = nn.Dropout(0.5, inplace=True)
    assert layer(x) is x
    assert 0 < int((x == 0).sum()) < LARGE
    ints = torch.arange(3)
    assert nn.Dropout(0.5).eval()(ints) is ints
    for run in (nn.Dropout(0.4), torch.nn.Dropout(0.4)):
        torch.manual_seed(5)
        result = torch.compile(run, backend="eager", fullgraph=True)(torch.ones(LARGE))
        torch.manual_seed(5)
        assert torch.equal(result, torch.nn.functional.dropout(torch.ones(LARGE), 0.4))
