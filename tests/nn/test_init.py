import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import init as torch_init

import burnt
from burnt import nn
from burnt.errors import ConfigError, ShapeError
from burnt.nn import init

# Initializer, torch's function with its arguments, and a shape.
TWINS: list[tuple[init.Initializer, Callable[[Tensor], Any], tuple[int, ...]]] = [
    (init.Constant(val=0.3), lambda w: torch_init.constant_(w, 0.3), (3,)),
    (init.Zeros(), torch_init.zeros_, ()),
    (init.Ones(), torch_init.ones_, (3,)),
    (init.Uniform(a=-2.0, b=0.5), lambda w: torch_init.uniform_(w, -2, 0.5), (5, 4)),
    (init.Normal(mean=1.0, std=0.2), lambda w: torch_init.normal_(w, 1, 0.2), (50,)),
    (
        init.TruncatedNormal(std=0.5, a=-0.3, b=0.7),
        lambda w: torch_init.trunc_normal_(w, 0, 0.5, -0.3, 0.7),
        (50, 4),
    ),
    (init.XavierUniform(gain=2.0), lambda w: torch_init.xavier_uniform_(w, 2.0), (6, 4, 3)),
    (init.XavierNormal(), torch_init.xavier_normal_, (6, 4)),
    (
        init.KaimingUniform(a=math.sqrt(5)),
        lambda w: torch_init.kaiming_uniform_(w, math.sqrt(5)),
        (6, 4, 3, 2),
    ),
    (
        init.KaimingNormal(mode="fan_out", nonlinearity="relu"),
        lambda w: torch_init.kaiming_normal_(w, mode="fan_out", nonlinearity="relu"),
        (6, 4),
    ),
    (init.Orthogonal(gain=3.0), lambda w: torch_init.orthogonal_(w, 3.0), (6, 4)),
    (init.Orthogonal(), torch_init.orthogonal_, (4, 3, 5)),
    (init.Sparse(sparsity=0.4), lambda w: torch_init.sparse_(w, 0.4), (10, 3)),
    (init.Eye(), torch_init.eye_, (3, 5)),
    (init.Dirac(groups=2), lambda w: torch_init.dirac_(w, 2), (4, 3, 3, 5)),
    (init.Dirac(), torch_init.dirac_, (4, 6, 3)),
]


def name_of(value: Any) -> str:
    return str(getattr(value, "__name__", value))


every = pytest.mark.parametrize(("initializer", "twin", "shape"), TWINS, ids=name_of)


@every
def test_values_for_a_seed_are_torchs(initializer: Any, twin: Any, shape: tuple[int, ...]) -> None:
    parameter, expected = torch.nn.Parameter(torch.full(shape, 7.0)), torch.empty(shape)
    torch.manual_seed(3)
    twin(expected)
    torch.manual_seed(3)
    assert initializer(parameter) is parameter
    assert torch.equal(parameter, expected)
    assert parameter.requires_grad
    assert parameter.grad_fn is None


@every
def test_is_a_config_and_takes_any_dtype_and_the_meta_device(
    initializer: Any, twin: Any, shape: tuple[int, ...]
) -> None:
    assert type(initializer).from_json(initializer.to_json()) == initializer
    in_16_bits = initializer(torch.empty(shape, dtype=torch.bfloat16))
    assert torch.isfinite(in_16_bits).all()
    assert initializer(torch.empty(shape, device="meta")).is_meta
    empty = torch.empty([0, *shape[1:]])
    assert initializer(empty) is empty


@every
def test_a_generator_draws_the_numbers(initializer: Any, twin: Any, shape: tuple[int, ...]) -> None:
    before = torch.get_rng_state()
    drawn = [initializer(torch.empty(shape), torch.Generator().manual_seed(5)) for _ in range(2)]
    assert torch.equal(*drawn)
    assert torch.equal(torch.get_rng_state(), before)


def test_every_initializer_is_here_and_may_be_a_field() -> None:
    names = {type(initializer).__name__ for initializer, _, _ in TWINS}
    assert names == set(init.__all__) - {"Gates", "Initializer", "apply"}

    class Model(burnt.Config):
        weight: init.Initializer = init.KaimingNormal()

    config = Model(weight=init.Sparse(sparsity=0.5))
    assert Model.from_json(config.to_json()) == config
    assert '"type": "Sparse"' in config.to_json()


def test_orthogonal_of_16_bits_and_of_a_transposed_weight() -> None:
    weight = init.Orthogonal()(torch.empty(6, 4, dtype=torch.bfloat16)).double()
    torch.testing.assert_close(weight.t() @ weight, torch.eye(4, dtype=torch.float64), atol=0.03, rtol=0)
    weight = init.Orthogonal()(torch.empty(4, 6).t())
    torch.testing.assert_close(weight.t() @ weight, torch.eye(4))


@pytest.mark.parametrize(
    ("build", "field", "expected"),
    [
        (lambda: init.Uniform(a=1.0, b=0.0), "b", "at least a = 1.0"),
        (lambda: init.Normal(std=-1.0), "std", "at least 0"),
        (lambda: init.TruncatedNormal(std=0.0), "std", "above 0"),
        (lambda: init.TruncatedNormal(a=2.0), "b", "above a = 2.0"),
        (lambda: init.Sparse(sparsity=1.5), "sparsity", "from 0 to 1"),
        (lambda: init.Sparse(sparsity=0.5, std=-1.0), "std", "at least 0"),
        (lambda: init.Dirac(groups=0), "groups", "at least 1"),
    ],
)
def test_bad_arguments_are_refused(build: Callable[[], Any], field: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build()
    assert (caught.value.where, caught.value.expected) == (field, expected)


@pytest.mark.parametrize(
    ("initializer", "shape", "expected"),
    [
        (init.KaimingNormal(), (3,), "at least two axes, (out, in, ...)"),
        (init.XavierUniform(), (), "at least two axes, (out, in, ...)"),
        (init.Orthogonal(), (3,), "at least two axes, (out, in, ...)"),
        (init.Sparse(sparsity=0.1), (3, 2, 1), "two axes"),
        (init.Eye(), (3,), "two axes"),
        (init.Dirac(), (3, 3), "three to five axes, the weight of a convolution"),
        (init.Dirac(groups=2), (3, 3, 1), "a first axis that is a multiple of 2"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused(initializer: Any, shape: Any, expected: str) -> None:
    with pytest.raises(ShapeError) as caught:
        initializer(torch.empty(shape))
    assert (caught.value.expected, caught.value.found) == (expected, shape)
    model = torch.nn.ParameterDict({"first": torch.ones(2, 4), "w": torch.ones(shape)})
    with pytest.raises(ShapeError) as caught:
        init.apply(model, [("first", init.Zeros()), ("*", initializer)])
    assert (caught.value.where, caught.value.expected, caught.value.found) == ("w", expected, shape)
    assert "('w', Zeros())" in str(caught.value)
    assert torch.equal(model["first"], torch.ones(2, 4))  # nothing was filled


# --- a whole model ----------------------------------------------------------------------------------------


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(4, 3, padding_idx=1)
        self.layers = torch.nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
        self.norm = nn.LayerNorm(3)
        self.head = nn.Linear(3, 4)
        self.head.weight = self.embed.weight  # type: ignore[assignment]


def test_the_first_pattern_that_matches_wins() -> None:
    model = Net()
    filled = init.apply(
        model,
        [
            ("*.bias", init.Zeros()),
            ("*norm*.weight | layers.1", init.Constant(val=2.0)),
            ("head", init.Ones()),  # the other name of the embedding
            ("*", init.KaimingNormal()),
        ],
    )
    assert filled == {
        "embed.weight": init.Ones(),
        "layers.0.weight": init.KaimingNormal(),
        "layers.0.bias": init.Zeros(),
        "layers.1.weight": init.Constant(val=2.0),
        "layers.1.bias": init.Zeros(),
        "norm.weight": init.Constant(val=2.0),
        "norm.bias": init.Zeros(),
        "head.bias": init.Zeros(),
    }
    assert torch.equal(model.embed.weight[:, 0], torch.tensor([1.0, 0, 1, 1]))  # the padding is zero
    assert torch.equal(model.layers[1].weight, torch.full((3, 3), 2.0))
    assert torch.equal(model.norm.bias, torch.zeros(3))


def test_parameters_are_filled_in_the_order_of_the_model() -> None:
    model, twin = Net(), Net()
    torch.manual_seed(1)
    init.apply(model, [("layers.1.weight", init.Normal()), ("layers.*.weight", init.XavierNormal())])
    torch.manual_seed(1)
    torch_init.xavier_normal_(twin.layers[0].weight)
    torch_init.normal_(twin.layers[1].weight)
    assert torch.equal(model.layers[0].weight, twin.layers[0].weight)
    assert torch.equal(model.layers[1].weight, twin.layers[1].weight)


def test_each_expert_is_filled_as_a_linear() -> None:
    layer = nn.MoeFeedForward(16, 64, num_experts=4)
    init.apply(layer, [("*_proj", init.XavierUniform())])
    for weight in (layer.gate_proj, layer.up_proj, layer.down_proj):
        bound = (6 / (16 + 64)) ** 0.5
        assert 0.95 * bound < float(weight.detach().abs().max()) <= bound
        assert weight.requires_grad
    init.apply(layer, [("down_proj", init.Orthogonal()), ("gate_proj", init.Eye())])
    down, gate = layer.down_proj.detach(), layer.gate_proj.detach()
    torch.testing.assert_close(down @ down.mT, torch.eye(16).expand(4, 16, 16), atol=1e-5, rtol=1e-5)
    assert torch.equal(gate, torch.eye(64, 16).expand(4, 64, 16))


def test_parameters_without_a_rule_are_unchanged() -> None:
    model = Net()
    before = {path: value.clone() for path, value in model.state_dict().items()}
    init.apply(model, [("layers.0.bias", init.Constant(val=9.0))], torch.Generator())
    for path, value in model.state_dict().items():
        assert torch.equal(value, before[path]) == (path != "layers.0.bias")


def test_an_alternative_without_a_parameter_gives_a_warning() -> None:
    model = Net()
    with pytest.warns(UserWarning, match=r"'nrm' in .* matches no parameter: did you mean 'norm'?"):
        filled = init.apply(model, [("norm.bias", init.Ones()), ("norm|nrm", init.Zeros())])
    assert list(filled) == ["norm.weight", "norm.bias"]


@pytest.mark.parametrize(
    ("patterns", "found", "hint"),
    [
        (["layer.0.weight"], "'layer.0.weight'", "did you mean 'layers.0.weight'?"),
        (["*", "*.bias"], "a pattern whose parameters all match earlier ones", "move this one up"),
    ],
)
def test_a_pattern_without_a_parameter_is_refused(patterns: list[str], found: str, hint: str) -> None:
    model = Net()
    before = model.norm.weight.clone()
    with pytest.raises(ConfigError) as caught:
        init.apply(model, [("norm.weight", init.Zeros()), *((p, init.Normal()) for p in patterns)])
    assert f"the pattern {patterns[-1]!r} initializes no parameter of Net" in str(caught.value)
    assert caught.value.found == found
    assert hint in str(caught.value)
    assert torch.equal(model.norm.weight, before)


def test_gates() -> None:
    layer = nn.Lstm(3, 4, num_layers=2, bidirectional=True)
    before = {path: p.detach().clone() for path, p in layer.named_parameters()}
    forget, recurrent = init.Gates((None, init.Ones(), None, None)), init.Gates((init.Orthogonal(),) * 4)
    init.apply(layer, [("bias_ih*", forget), ("bias_hh*", init.Zeros()), ("weight_hh*", recurrent)])
    for path, parameter in layer.named_parameters():
        gates = parameter.detach().view(4, 4, -1)
        if path.startswith("bias_ih"):
            assert (gates[1] == 1).all()
            assert torch.equal(gates[[0, 2, 3]], before[path].view(4, 4, -1)[[0, 2, 3]])
        elif path.startswith("weight_hh"):
            torch.testing.assert_close(gates @ gates.mT, torch.eye(4).expand(4, 4, 4))
    assert init.Gates.from_json(recurrent.to_json()) == recurrent
    for gates, shape, expected in (
        (forget, (6,), "a first axis that is a multiple of 4"),
        (forget, (), "a first axis that is a multiple of 4"),
        (recurrent, (8,), "4 gates for Orthogonal, each of at least two axes, (out, in, ...)"),
    ):
        with pytest.raises(ShapeError) as caught:
            gates(torch.empty(shape))
        assert caught.value.expected == expected
    with pytest.raises(ConfigError, match="at least one initializer"):
        init.Gates(())


def test_an_initializer_of_your_own() -> None:
    class Ramp(init.Initializer):
        size: float = 1.0

        def fill(self, tensor: Tensor, generator: torch.Generator | None = None) -> None:
            tensor.copy_(torch.linspace(0, self.size, tensor.numel()).view_as(tensor))

    class Model(burnt.Config):
        weight: init.Initializer

    config = Model(weight=Ramp(size=2.0))
    assert Model.from_json(config.to_json()) == config
    linear = nn.Linear(3, 1)
    init.apply(linear, [("weight", config.weight)])
    assert linear.weight.tolist() == [[0, 1, 2]]
    assert not linear.weight.grad_fn


@pytest.mark.parametrize(
    ("rules", "match"),
    [
        ({"*": init.Zeros()}, r"found     dict\n  hint      \[\*rules.items\(\)\]"),
        (("*", init.Zeros()), r"rules\[0\](.|\n)*a list, also of one pair: \[rule\]"),
        ([(init.Zeros(), "*")], "a rule of apply is a pair"),
        ([("*", "zeros")], r"found     'zeros'\n  hint      Zeros\(...\)"),
        ([("*", init.Zeros)], r"hint      Zeros\(...\)"),
        ([("*", torch.nn.init.trunc_normal_)], r"hint      TruncatedNormal\(...\)"),
        ([("*", lambda tensor: tensor)], "hint      for a function of your own: a subclass of Initializer"),
        ([("*", 0.5)], "found     0.5"),
    ],
)
def test_rules_that_are_none(rules: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        init.apply(nn.Linear(3, 2), rules)
