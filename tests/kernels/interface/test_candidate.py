"""Candidates of one's own that are written wrongly, or are given what they cannot take: who is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from burnt import kernels
from burnt.errors import DefinitionError, InputRuntimeError, InputTypeError
from burnt.kernels.autotune.tuner import tune
from burnt.kernels.dispatch.op import Op
from burnt.kernels.interface import tuning_key
from burnt.kernels.interface.candidate import OPS


@pytest.fixture(autouse=True)
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BURNT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def op() -> Op[..., Any]:
    def shifted(x: Tensor, bias: Tensor | None = None, scale: float = 2.0) -> Tensor:
        return x * scale if bias is None else x * scale + bias

    return kernels.op(shifted)


def right(x: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    return x * scale if bias is None else x * scale + bias


# --- registration -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"devices": ["gpu"]}, r"devices= of the candidate 'mine' of shifted(.|\n)*found +\['gpu'\]"),
        ({"devices": ["cuda:0"]}, r"devices= of(.|\n)*device types(.|\n)*found +\['cuda:0'\]"),
        ({"devices": [0]}, r"devices= of(.|\n)*found +\[0\]"),
        ({"dtypes": ["float32"]}, r"dtypes= of(.|\n)*torch dtypes(.|\n)*found +\['float32'\]"),
        ({"dtypes": [float]}, r"dtypes= of(.|\n)*found +\[<class 'float'>\]"),
        ({"dtypes": []}, r"dtypes= of(.|\n)*a list of(.|\n)*found +\[\]"),
        ({"devices": ()}, r"devices= of(.|\n)*None for any(.|\n)*found +\(\)"),
        ({"devices": 3}, r"devices= of(.|\n)*a list(.|\n)*found +3"),
        ({"devices": "cpu"}, r"devices= of(.|\n)*a list of(.|\n)*found +'cpu'"),
        ({"dtypes": torch.float32}, r"dtypes= of(.|\n)*a list"),
        ({"when": True}, r"when= of(.|\n)*a function of the op's arguments"),
        ({"configs": [{"BLOCK": 1}]}, r"configs= of(.|\n)*a function"),
        ({"best": False}, r"best= of(.|\n)*a function"),
        ({"configs": lambda *_: [{"BLOCK": 1}]}, r"the function of(.|\n)*config\), as it is called"),
    ],
)
def test_limits_that_can_hold_for_nothing_are_refused(
    op: Op[..., Any], limits: dict[str, Any], message: str
) -> None:
    with pytest.raises(DefinitionError, match=message):
        op.candidate("mine", **limits)(right)
    assert "mine" not in op.candidates


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (3, r"found +3"),
        (lambda x: x, r"\(x, bias, scale\), as it is called(.|\n)*\(x\): too many positional arguments"),
        (lambda x, bias, scale, more: x, "missing a required argument: 'more'"),
        (lambda x, bias, scale, config: x, "missing a required argument: 'config'"),
        (lambda x, bias, *, scale: x, "too many"),
    ],
)
def test_a_candidate_is_a_function_of_the_ops_arguments(op: Op[..., Any], call: Any, message: str) -> None:
    with pytest.raises(DefinitionError, match=message) as error:
        op.candidate("mine")(call)
    assert error.value.what == "the function of the candidate 'mine' of shifted cannot be used"
    assert "mine" not in op.candidates
    op.candidate("mine")(lambda *args, **kwargs: right(*args))
    op.candidate("built in")(torch.add)
    op.discard("built in")


@pytest.mark.parametrize("given", [3, "softmax", torch.ones(2)])
def test_an_op_is_made_of_a_function(given: Any) -> None:
    with pytest.raises(DefinitionError, match="an op is defined by a function"):
        kernels.op(given)


def test_a_candidate_has_a_name(op: Op[..., Any]) -> None:
    with pytest.raises(
        DefinitionError, match=r"a candidate of shifted has no name(.|\n)*found +right"
    ) as error:
        op.candidate(right)  # type: ignore[arg-type]
    assert error.value.hint == '@shifted.candidate("mine")'


def test_help_lists_the_limits() -> None:
    for limit in ("devices", "dtypes", "when", "configs", "best", "differentiable", "autocast"):
        assert f"{limit}=" in str(Op.candidate.__doc__)


@pytest.mark.parametrize(
    ("limits", "found"),
    [
        ({"when": lambda *_: False}, "or None if it can run\n  found     False"),
        ({"when": lambda *_: 1 // 0}, "ZeroDivisionError: "),
        ({"when": lambda x: None}, "TypeError: "),
        ({"configs": lambda *_: {"BLOCK": 1}}, "found     {'BLOCK': 1}"),
        ({"configs": lambda *_: []}, "at least one"),
        ({"configs": lambda *_: [{"BLOCK": torch.ones(1)}]}, "JSON"),
        ({"configs": lambda *_: [{1: 2}]}, "{1: 2}"),
        ({"configs": lambda *_: [{"BLOCK": (1, 2)}]}, "(1, 2)"),
        ({"best": lambda *_: [][0]}, "IndexError: "),
    ],
)
def test_a_limit_that_cannot_be_used_breaks_a_call_and_no_other_candidate(
    op: Op[..., Any], limits: dict[str, Any], found: str
) -> None:
    op.candidate("good", best=lambda *_: False)(right)

    @op.candidate("bad", **limits)
    def bad(x: Tensor, bias: Tensor | None, scale: float, config: Any = None) -> Tensor:
        return right(x, bias, scale)

    (limit,) = limits
    x = torch.randn(5)
    with pytest.raises(DefinitionError) as error:
        op(x)
    assert error.value.what == f"{limit}= of the candidate 'bad' of shifted cannot be used"
    assert found in str(error.value)
    reported = kernels.explain(op, x)
    assert reported.winner == "library"
    assert reported.raises is not None
    assert f"a call raises: {error.value.what}" in str(reported)
    assert {c.name: c.why_not or "" for c in reported.candidates}["bad"].startswith(error.value.what)
    rows = {row.config: row for row in tune(op, (x,))}
    assert rows["good"].status == rows["library"].status == "ok"
    assert (rows["bad"].status, rows["bad"].note[: len(error.value.what)]) == ("failed", error.value.what)


def test_a_limit_may_count_on_what_the_reference_takes(op: Op[..., Any]) -> None:
    op.candidate("bad", when=lambda x, bias, scale: None if x.shape[0] == bias.shape[0] else "other")(right)
    with pytest.raises(InputRuntimeError, match="shifted cannot take these arguments"):
        op(torch.randn(3, 4), torch.randn(7).sum().expand(2, 5))


def test_dtypes_want_one_tensor_that_has_one(op: Op[..., Any]) -> None:
    op.candidate("mine", dtypes=[torch.float32, torch.int32])(right)
    x = torch.ones(3)
    for args, runs in (
        ((x,), True),
        ((x.int(),), True),
        ((x.long(),), False),
        ((x.double(),), False),
        ((x.long(), x), True),  # of integers next to floats `when` has to speak
    ):
        assert (op.chosen(*args).candidate.name == "mine") == runs


# --- arguments --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [[1.0], (1.0,), np.ones(2), 3, 3.0, "x", None, torch.float32])
def test_what_is_no_tensor_is_named(op: Op[..., Any], given: Any) -> None:
    op.candidate("mine")(right)
    for _ in range(2):
        with pytest.raises(InputTypeError, match="the argument x of shifted is not a tensor") as error:
            op(given)
    assert error.value.expected == "x: Tensor"
    assert error.value.hint == (None if given is None else "torch.as_tensor(x)")
    if given is not None:
        assert type(given).__name__ in str(error.value.found)
        with pytest.raises(InputTypeError, match=r"the argument bias (.|\n)*Tensor \| None"):
            op(torch.ones(2), given)


@pytest.mark.parametrize("given", [torch.ones(()), torch.ones(2), "2.0", [2.0], None])
def test_what_is_no_number_is_named(op: Op[..., Any], given: Any) -> None:
    op.candidate("mine")(lambda x, bias, scale: torch.clone(x))
    for _ in range(2):
        with pytest.raises(InputTypeError, match="the argument scale of shifted is not a number"):
            op(torch.ones(2), None, given)
    for number in (2, 2.0, True, np.float64(2), np.float32(2)):
        op(torch.ones(2), None, number)


def test_what_stands_in_for_a_tensor_is_let_through(op: Op[..., Any]) -> None:
    class Marked(Tensor):
        pass

    assert op(torch.ones(2).as_subclass(Marked)).tolist() == [2, 2]
    graph = torch.fx.symbolic_trace(lambda x: op(x))  # type: ignore[no-untyped-call]
    assert graph(torch.ones(2)).tolist() == [2, 2]


def test_what_the_reference_refuses_raises_as_the_reference_does(op: Op[..., Any]) -> None:
    @op.candidate("mine")
    def mine(x: Tensor, bias: Tensor | None, scale: float) -> Tensor:
        assert bias is not None
        assert x.shape == bias.shape
        return right(x, bias, scale)

    for _ in range(2):
        with pytest.raises(InputRuntimeError, match="shifted cannot take these arguments") as error:
            op(torch.ones(2), torch.ones(3))
    assert "must match the size" in str(error.value.found)


@pytest.mark.parametrize("kind", [AssertionError, KeyError, OSError, RuntimeError, ValueError])
def test_whatever_a_candidate_raises_is_reported_with_its_name(
    op: Op[..., Any], kind: type[Exception]
) -> None:
    calls = []

    @op.candidate("mine")
    def mine(x: Tensor, bias: Tensor | None, scale: float) -> Tensor:
        calls.append(1)
        if len(calls) != 2:
            raise kind("kaboom")
        return right(x, bias, scale)

    x = torch.ones(2)
    for runs in (False, True, False):  # also when a signature has been met before
        if runs:
            assert op(x).tolist() == [2, 2]
            continue
        with pytest.raises(Exception, match="the candidate 'mine' of shifted fails") as error:
            op(x)
        assert type(error.value.__cause__) is kind
        assert "kaboom" in str(error.value)


def test_a_launch_without_a_gpu_names_the_interpreter(op: Op[..., Any]) -> None:
    @op.candidate("mine")
    def mine(x: Tensor, bias: Tensor | None, scale: float) -> Tensor:
        raise RuntimeError("0 active drivers ([]). There should only be one.")

    with pytest.raises(InputRuntimeError, match="TRITON_INTERPRET=1 is set before triton is imported"):
        op(torch.ones(2))


def test_a_call_that_changes_an_argument_says_so(op: Op[..., Any]) -> None:
    op.candidate("mine")(lambda x, bias, scale: x.mul_(scale))
    with pytest.raises(DefinitionError, match="'mine' of shifted modifies its argument x"):
        op(torch.ones(2))
    op.candidate("mine")(lambda x, bias, scale: (bias[:1].zero_(), x * scale + bias)[1])
    with pytest.raises(DefinitionError, match="'mine' of shifted modifies its argument bias"):
        op(torch.ones(2), torch.ones(2))
    with torch.inference_mode():
        assert op(torch.ones(2), torch.ones(2)).tolist() == [2, 3]  # nobody counts there


@pytest.mark.sample
@pytest.mark.parametrize(
    ("call", "found", "note"),
    [
        (lambda x, *_: (x * 2,), "a tuple of 1: float32 (3,)", "returns a tuple of 1, expected a tensor"),
        (lambda x, *_: [x * 2], "a list of 1: float32 (3,)", "returns a list of 1, expected a tensor"),
        (lambda x, *_: torch.empty_like(x, device="meta"), "float32 (3,) on meta", "result 0: device meta"),
        (lambda x, *_: x, "the argument x, or a view of it", "result 0 is the argument x"),
        (lambda x, *_: x.view(-1), "the argument x, or a view of it", "result 0 is the argument x"),
        (lambda x, *_: None, "None", "returns a NoneType, expected a tensor"),
        (lambda x, *_: (x * 2).double(), "float64 (3,)", "result 0: dtype torch.float64"),
        (lambda x, *_: (x * 2, x), "float32 (3,), float32 (3,)", "returns a tuple of 2, expected a tensor"),
    ],
)
@pytest.mark.parametrize("trained", [False, True])
def test_results_are_new_tensors_of_the_form_and_device_of_the_references(
    op: Op[..., Any], call: Callable[..., Any], found: str, note: str, trained: bool
) -> None:
    op.candidate("mine")(call)
    x = torch.zeros(3, requires_grad=trained)
    with pytest.raises(DefinitionError, match="'mine' of shifted does not return what") as error:
        op(x)
    assert error.value.found == found
    row = next(row for row in tune(op, (x,)) if row.config == "mine")
    assert row.status == "wrong"
    assert note in row.note or found in row.note


def test_a_result_of_another_shape_is_refused(op: Op[..., Any]) -> None:
    op.candidate("mine")(lambda x, *_: (x * 2)[1:])
    with pytest.raises(DefinitionError, match="'mine' of shifted does not return what") as error:
        op(torch.ones(3))
    assert (error.value.expected, error.value.found) == ("float32 (3,)", "float32 (2,)")
    op.discard("mine")
    assert op(torch.ones(3)).sum() == 6


def test_a_view_may_be_returned_where_the_reference_returns_one() -> None:
    @kernels.op
    def kept(x: Tensor, scale: float = 1.0) -> Tensor:
        return x if scale == 1 else x * scale

    kept.candidate("mine")(lambda x, scale: x if scale == 1 else x * scale)
    x = torch.ones(3)
    assert kept(x).data_ptr() == x.data_ptr()
    assert {row.config: row.status for row in tune(kept, (x,))}["mine"] == "ok"


# --- gradients --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "found"),
    [
        (lambda g: g, "not a tuple: float32 (2, 3)"),
        (lambda g: None, "not a tuple: None"),
        (lambda g: (), "a tuple of 0: nothing"),
        (lambda g: (g,), "a tuple of 1: float32 (2, 3)"),
        (lambda g: (g, None, None), "a tuple of 3: float32 (2, 3), None, None"),
        (lambda g: (g, g), "a tuple of 2: float32 (2, 3), float32 (2, 3)"),  # one is not summed up
        (lambda g: (g, 0.5), "a tuple of 2: float32 (2, 3), 0.5"),
    ],
)
def test_a_backward_gives_a_gradient_for_each_tensor(
    op: Op[..., Any], made: Callable[[Tensor], Any], found: str
) -> None:
    mine = op.candidate("mine")(right)
    mine.backward(lambda grad_outs, results, *args: made(grad_outs[0]))
    x, bias = torch.ones(2, 3, requires_grad=True), torch.ones(3)
    with pytest.raises(DefinitionError) as error:
        op(x, bias).sum().backward()
    assert error.value.what == "the backward of the candidate 'mine' of shifted cannot be used"
    assert "a tuple of 2" in str(error.value.expected)
    assert "x (2, 3), bias (3,)" in str(error.value.expected)
    assert error.value.found == found
    mine.backward(lambda grad_outs, results, *args: (grad_outs[0] * 2, None))
    op(x, bias).sum().backward()
    assert x.grad is not None
    assert x.grad.unique().tolist() == [2]


def test_one_gradient_is_a_tuple_too(op: Op[..., Any]) -> None:
    mine = op.candidate("mine")(right)
    mine.backward(lambda grad_outs, results, *args: grad_outs[0])
    with pytest.raises(DefinitionError, match=r"return \(dx,\), with a comma"):
        op(torch.ones(2, requires_grad=True)).sum().backward()


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda g, y, x: g, r"grad_outs\[0\]"),
        (lambda g, y, x: y, r"results\[0\]"),
        (lambda g, y, x: x, "its argument x"),
    ],
)
def test_a_backward_that_changes_what_it_is_given_says_so(
    op: Op[..., Any], change: Callable[..., Tensor], what: str
) -> None:
    mine = op.candidate("mine")(right)

    @mine.backward
    def _(grad_outs: Any, results: Any, x: Tensor, *rest: Any) -> Any:
        result = grad_outs[0] * 2
        with torch.no_grad():
            change(grad_outs[0], results[0], x).zero_()
        return (result,)

    with pytest.raises(
        DefinitionError, match=f"the backward of the candidate 'mine' of shifted modifies {what}"
    ):
        op(torch.ones(2, requires_grad=True)).sum().backward()


def test_a_backward_that_raises_is_named(op: Op[..., Any]) -> None:
    mine = op.candidate("mine")(right)

    @mine.backward
    def _(*_: Any) -> Any:
        raise KeyError("no gradient today")

    result = op(torch.ones(2, requires_grad=True))
    with pytest.raises(
        InputRuntimeError, match=r"the backward of the candidate 'mine' of shifted fails"
    ) as error:
        result.sum().backward()
    assert isinstance(error.value.__cause__, KeyError)


# --- definitions ------------------------------------------------------------------------------------------


def test_arguments_are_given_by_position() -> None:
    def kwonly(x: Tensor, *, eps: float = 1.0) -> Tensor:
        return x * eps

    def several(*x: Tensor) -> Tensor:
        return x[0]

    with pytest.raises(
        DefinitionError, match=r"the argument eps of the op kwonly is keyword-only(.|\n)*the \*"
    ):
        kernels.op(kwonly)
    with pytest.raises(DefinitionError, match="the argument x of the op several is variadic positional"):
        kernels.op(several)
    assert not {"kwonly", "several"} & set(OPS)


def test_an_op_that_was_typed_in() -> None:
    result: dict[str, Any] = {}
    for _ in range(2):
        for factor in (2, 3):
            scope: dict[str, Any] = {"torch": torch, "kernels": kernels}
            exec(
                "@kernels.op\ndef typed_in(x: torch.Tensor) -> torch.Tensor:\n"
                f"    return (lambda y: y * {factor})(x) if 'a' in {{'a', 'b'}} else x\n",
                scope,
            )
            typed_in = scope["typed_in"]
            assert typed_in(torch.ones(2)).tolist() == [factor] * 2
            typed_in.candidate("mine")(eval(f"lambda x: x * {factor} * 1"))
            key = typed_in.chosen(torch.ones(2)).key
            assert result.setdefault(factor, key) == key
    assert result[2] != result[3]


def test_key_of_a_typed_in_op_does_not_depend_on_the_order_of_a_set() -> None:
    one, two = (eval(f"lambda x: x in {{{numbers}}}") for numbers in ("0, 8", "8, 0"))
    assert repr(one.__code__.co_consts) != repr(two.__code__.co_consts)  # as in processes of other hash seeds
    assert tuning_key._source_text(one) == tuning_key._source_text(two)


def test_annotations_are_described_in_pythons_words() -> None:
    def without_annotation(x: Tensor, y) -> Tensor:  # type: ignore[no-untyped-def]
        return x

    def of_floats(x: Tensor, y: list[float]) -> Tensor:
        return x

    with pytest.raises(DefinitionError, match=r"found +no annotation") as error:
        kernels.op(without_annotation)
    assert (
        error.value.expected
        == "Tensor, int, float, bool, str, torch.dtype, Sequence[int], or one of them `| None`"
    )
    with pytest.raises(DefinitionError, match=r"found +list\[float\]"):
        kernels.op(of_floats)


def test_examples_are_filled_in(op: Op[..., Any]) -> None:
    op.examples = lambda device: [(torch.ones(2),), (torch.ones(2), torch.ones(2))]
    device = torch.device("cpu")
    (_, bias, scale), (_, given, _) = op.example_args(device)
    assert (bias, scale) == (None, 2.0)
    assert given.tolist() == [1, 1]
    for examples, message in (
        ([()], r"example 0 of the op shifted(.|\n)*\(x: Tensor, bias: Tensor \| None(.|\n)*argument: 'x'"),
        ([(torch.ones(1),), torch.ones(2)], r"example 1 of(.|\n)*found +float32 \(2,\)(.|\n)*not a tuple"),
        ([(torch.ones(1), None, 1.0, 2)], r"4 were given"),
    ):
        op.examples = lambda device, examples=examples: examples  # type: ignore[misc]
        with pytest.raises(DefinitionError, match=message):
            op.example_args(device)
    assert {row.status for row in tune(op, (torch.ones(2),))} == {"ok"}


def test_of_notes_the_first_line_is_shown(op: Op[..., Any]) -> None:
    op.candidate("mine", when=lambda *_: "not today\nnor tomorrow")(right)
    reported = str(kernels.explain(op, torch.ones(2)))
    assert "not today\n" in reported
    assert "tomorrow" not in reported


def test_explaining_raises_what_a_call_raises(op: Op[..., Any]) -> None:
    for args in (("x",), (torch.ones(2), torch.ones(3)), (torch.ones(2), None, "y"), ()):
        with pytest.raises(TypeError if len(args) != 2 else InputRuntimeError) as called:
            op(*args)
        with pytest.raises(type(called.value)) as error:
            kernels.explain(op, *args)
        assert str(error.value) == str(called.value)
    for refused in (kernels.softmax, kernels.log_softmax):
        with pytest.raises(IndexError):
            kernels.explain(refused, torch.ones(3), 5)
    with pytest.raises(InputRuntimeError):
        kernels.explain(kernels.swiglu, torch.ones(3), torch.ones(2))
