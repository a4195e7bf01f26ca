"""Canaries: what burnt uses of torch's private interfaces is still what it was."""

import ctypes
import logging
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.utils.flop_counter import FlopCounterMode

from burnt import _torch
from tests import forked


def test_torchs_batch_norms_share_the_base() -> None:
    for kind in (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d, torch.nn.SyncBatchNorm):
        assert issubclass(kind, _torch.BatchNormBase), f"{kind} no longer derives from _BatchNorm"


def test_torchs_instance_norms_share_the_base() -> None:
    for kind in (torch.nn.InstanceNorm1d, torch.nn.InstanceNorm2d, torch.nn.InstanceNorm3d):
        assert issubclass(kind, _torch.InstanceNormBase), f"{kind} no longer derives from _InstanceNorm"


def test_the_compiler_is_loaded_by_compiling_and_not_before() -> None:
    code = (
        "import torch; from burnt._torch import compiler_is_loaded as loaded\n"
        "before = loaded(); torch.compile(lambda x: x + 1, backend='eager')(torch.ones(1)); "
        "print(before, loaded())"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert out.stdout.split() == ["False", "True"], out.stdout + out.stderr


def test_the_openmp_runtime_can_be_found_through_torchs_extension() -> None:
    library = ctypes.CDLL(_torch.EXTENSION)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert library.omp_get_max_threads() == 3, "the extension no longer leads to torch's OpenMP runtime"
    finally:
        torch.set_num_threads(before)


def test_what_the_compiler_wrapped_is_compiled_in_place() -> None:
    calls = []

    def backend(graph, inputs):
        calls.append(graph)
        return graph.forward

    model = torch.nn.Linear(2, 3)
    wrapped = torch.compile(model, backend=backend)
    assert _torch.compiled_in_place(wrapped) is model, "torch.compile's wrapper keeps the module elsewhere"
    assert _torch.compiled_in_place(model) is model
    model(torch.ones(1, 2))
    assert calls, "a module no longer runs _compiled_call_impl when it is called"
    torch.testing.assert_close(wrapped(torch.ones(1, 2)), model._call_impl(torch.ones(1, 2)))


def test_what_is_compiled_is_told_from_what_is_not() -> None:
    class Net(torch.nn.Module):
        @torch.compile(backend="eager")
        def forward(self, x):
            return x

    wrapped = torch.compile(torch.nn.Linear(2, 3), backend="eager")
    in_place = torch.nn.Linear(2, 3)
    in_place.compile(backend="eager")
    function = torch.compile(lambda x: x, backend="eager")
    for compiled in (_torch.compiled_in_place(wrapped), in_place, Net().forward, function):
        assert _torch.is_compiled(compiled)
    assert not any(map(_torch.is_compiled, (torch.nn.Linear(2, 3), torch.nn.Linear(2, 3).forward, len)))


def test_what_is_compiled_can_be_had_without() -> None:
    def double(x):
        return 2 * x

    model, other = torch.nn.Linear(2, 3), torch.nn.Linear(2, 3)
    other.compile(backend="eager")
    assert _torch.uncompiled(torch.compile(model, backend="eager")) is model
    assert _torch.uncompiled(torch.compile(double, backend="eager")) is double
    assert _torch.uncompiled(other) == other.forward
    assert _torch.uncompiled(model) is model
    assert _torch.uncompiled(double) is double


def test_dynamo_says_where_and_why_a_graph_ended() -> None:
    reasons = []

    def backend(graph, inputs):
        reasons.append(_torch.break_reason(graph))
        return graph.forward

    @torch.compile(backend=backend)
    def split(x):
        x = x + 1
        torch._dynamo.graph_break()
        return x * 2 if x.sum() > 0 else x

    split(torch.ones(2))
    assert len(reasons) == 3
    assert reasons[2] is None
    assert f"{__file__}:" in reasons[0]
    assert ", `torch._dynamo.graph_break()`: " in reasons[0]
    assert reasons[1].endswith(": a branch depends on a tensor's value"), reasons[1]


def test_a_function_runs_without_memory_as_it_would_with() -> None:
    x = torch.ones(2, 3).t().requires_grad_()
    weight = torch.nn.Parameter(torch.ones(()))
    doubled, flags, scaled = _torch.fake_results(lambda x: (x * 2, x > 0, x.detach() * weight), [x])
    assert doubled.stride() == (1, 3)
    assert [t.requires_grad for t in (doubled, flags, scaled)] == [True, False, True]


def test_ops_on_real_tensors_run_within_a_call_without_memory() -> None:
    real = []

    def call(x: torch.Tensor) -> torch.Tensor:
        with _torch.real_tensors():
            real.append(torch.ones(2) * 3)
        return x * torch.ones(3)

    (fake,) = _torch.fake_results(call, [torch.ones(3)])
    assert real[0].tolist() == [3, 3]
    assert type(fake) is not torch.Tensor


def test_a_call_within_a_transform_or_mode_is_known_by_it() -> None:
    from torch.autograd import forward_ad
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    assert _torch.is_plain_call()
    for mode in (TorchFunctionMode(), TorchDispatchMode(), forward_ad.dual_level()):
        with mode:
            assert not _torch.is_plain_call()
    assert not torch.vmap(lambda x: x * _torch.is_plain_call())(torch.ones(1)).item()
    assert _torch.is_plain_call()


def test_lazy_tensors_are_materialized() -> None:
    x = torch.tensor([1.0, -2.0])
    zero = torch._efficientzerotensor(2)
    lazy = [
        torch._neg_view(x),
        zero,
        torch._neg_view(zero),
        torch.complex(x, x).conj(),
        torch.complex(x, x).conj().imag,
    ]
    for tensor in lazy:
        assert _torch.is_lazy(tensor)
        found = _torch.materialized(tensor)
        assert not _torch.is_lazy(found)
        assert found.data_ptr() != 0, "torch's zero tensor stays without memory"
        torch.testing.assert_close(found, tensor)
    assert not _torch.is_lazy(x)
    assert _torch.materialized(x) is x
    zero = torch._efficientzerotensor(2).requires_grad_()
    assert _torch.materialized(zero).requires_grad


def test_the_vmap_of_batched_gradients_is_known_by_it() -> None:
    found = []

    class Looks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            found.append((_torch.in_transform(), _torch.is_plain_call(), _torch.is_plain_backward()))
            return grad * 2

    x = torch.ones(2, requires_grad=True)
    y = Looks.apply(x)
    for options in ({}, {"is_grads_batched": True}, {"create_graph": True}):
        torch.autograd.grad(
            y, x, torch.eye(2) if len(found) == 1 else torch.ones(2), retain_graph=True, **options
        )
    assert found == [(False, True, True), (True, False, False), (False, True, False)]


def test_autocast_of_any_device_is_known() -> None:
    assert not _torch.is_autocast()
    with torch.autocast("cpu", torch.bfloat16):
        assert _torch.is_autocast()
        with _torch.without_autocast():
            assert not _torch.is_autocast()
            assert not torch.is_autocast_enabled("cpu")
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
        assert _torch.is_autocast()


def test_tensors_that_share_memory_are_known() -> None:
    x = torch.ones(4)
    assert _torch.share_memory(x, x[2:])
    assert not _torch.share_memory(x, x.clone())


def test_dispatch_can_be_put_below_autograd_and_back() -> None:
    x = torch.ones(2, requires_grad=True)
    with _torch.below_autograd():
        assert not (x * 2).requires_grad, "the guard no longer switches autograd off"
        with _torch.normal_dispatch():
            assert (x * 2).requires_grad, "the keys of a fresh thread no longer switch autograd on"
    with torch.autocast("cpu", torch.bfloat16), _torch.normal_dispatch():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


def test_transforms_and_forward_derivatives_are_known() -> None:
    seen = []

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append((_torch.in_transform(), _torch.in_forward_ad()))
        return x * 2

    look(torch.ones(2))
    torch.vmap(look)(torch.ones(2))
    torch.func.jvp(look, (torch.ones(2),), (torch.ones(2),))
    assert seen == [(False, False), (True, False), (True, True)]


def test_a_library_can_be_taken_back() -> None:
    library = torch.library.Library("burnt_canary", "FRAGMENT")
    library.define("f(Tensor x) -> Tensor")
    library.impl("f", lambda x: x + 1, "CompositeExplicitAutograd")
    assert torch.ops.burnt_canary.f(torch.ones(1)).item() == 2
    _torch.destroy(library)
    assert not hasattr(torch.ops.burnt_canary, "f"), "a destroyed library leaves its names behind"


def test_arguments_that_do_not_fit_raise_and_are_not_logged() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    class Kept(logging.Handler):
        records: list[logging.LogRecord] = []

        def emit(self, record: logging.LogRecord) -> None:
            self.records.append(record)

    logger, kept = logging.getLogger("torch._subclasses.fake_tensor"), Kept()
    logger.addHandler(kept)
    x, y = torch.ones(2, 3), torch.ones(2, 4)
    try:
        with pytest.raises(RuntimeError):
            _torch.fake_call(lambda a, b: a + b, (x, y))
        with pytest.raises(RuntimeError):
            _torch.trace_to_aten(lambda a, b: a + b, (x, y), {})
        assert not kept.records, "torch logs from another place"
        with FakeTensorMode(), pytest.raises(RuntimeError):
            torch.ones(2, 3) + torch.ones(2, 4)
        assert kept.records, "torch does not log these any more: the filter can go"
    finally:
        logger.removeHandler(kept)


def test_changes_in_place_are_counted() -> None:
    x = torch.ones(3)
    before = _torch.version_of(x)
    x[1:].add_(1)
    assert _torch.version_of(x) == before + 1, "a change of a view is not counted"
    with torch.inference_mode():
        assert _torch.version_of(torch.ones(3).add_(1)) == 0


def test_the_version_of_a_saved_tensor_is_checked_unless_it_is_skipped() -> None:
    class Saves(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            if is_skipped:
                with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                    _ = ctx.saved_tensors
                _torch.skip_version_checks(ctx, [0])
            assert ctx.saved_tensors[0].grad_fn is not None
            return grad

    w = torch.ones(3, requires_grad=True)
    for is_skipped in (False, True):
        x = w * 1
        y = Saves.apply(x)
        x.add_(1)
        if is_skipped:
            y.sum().backward()
        else:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                y.sum().backward()


def test_onednn_multiplies_with_a_tail_and_packed_weights() -> None:
    assert _torch.has_mkl() == torch.backends.mkl.is_available()
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN")
    assert _torch.onednn_supports(torch.float32), "torch.ops.mkldnn._linear_pointwise is gone"
    assert not _torch.onednn_supports(torch.float64)
    x, weight, bias = torch.randn(5, 7), torch.randn(3, 7), torch.randn(3)
    plain = torch.nn.functional.linear(x, weight, bias)
    torch.testing.assert_close(_torch.onednn_linear(x, weight, bias), plain)
    turned = weight.t().contiguous().t()
    torch.testing.assert_close(_torch.onednn_linear(x, turned, None), plain - bias)
    packed = _torch.onednn_packed(weight, 5)
    expected = torch.nn.functional.gelu(plain, approximate="tanh")
    torch.testing.assert_close(_torch.onednn_linear(x, packed, bias, "gelu", "tanh"), expected)


def test_a_backend_is_told_which_arguments_are_parameters() -> None:
    layer = torch.nn.Linear(3, 2)
    layer.register_buffer("shift", torch.ones(2))
    found = []

    def backend(dynamo: torch.fx.GraphModule, examples: Any) -> Any:
        def compiler(kind: str, graph: torch.fx.GraphModule, examples: Any) -> Any:
            inputs = graph.graph.find_nodes(op="placeholder")
            static = _torch.parameters_of(graph, _torch.static_inputs(dynamo))
            found.append([tuple(inputs[i].meta["val"].shape) for i in sorted(static)])
            return _torch.boxed(graph.forward)

        return _torch.aot_backend(compiler, {}, lambda node: False, lambda joint: joint)(dynamo, examples)

    with torch.no_grad():
        torch.compile(lambda x, y: layer(x) + layer.shift * y, backend=backend)(
            torch.ones(5, 3), torch.ones(2)
        )
    assert sorted(found[0]) == [(2,), (2,), (2, 3)], "torch marks parameters of a graph in another way"


def test_a_backend_rewrites_forward_and_backward_together() -> None:
    targets: list[str] = []

    def rewrite(joint: torch.fx.GraphModule) -> torch.fx.GraphModule:
        for node in joint.graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default):
            assert isinstance(node.meta["val"], torch.Tensor)
            node.target = torch.ops.aten.exp.default
        targets.extend(node.name for node in joint.graph.find_nodes(op="placeholder"))
        return joint

    def backend(dynamo: torch.fx.GraphModule, examples: Any) -> Any:
        def compiler(kind: str, graph: torch.fx.GraphModule, examples: Any) -> Any:
            return _torch.boxed(graph.forward)

        return _torch.aot_backend(compiler, {}, lambda node: False, rewrite)(dynamo, examples)

    x = torch.ones(3, requires_grad=True)
    y = torch.compile(lambda x: x.sin(), backend=backend)(x)
    assert len(targets) == 2, "the graph given to AOTAutograd's partitioner is not forward and backward"
    torch.testing.assert_close(y, x.exp())


@pytest.mark.parametrize("turned", [False, True])
def test_onednn_is_not_given_weights_with_gaps(turned: bool, capfd: pytest.CaptureFixture[str]) -> None:
    """It has no fast loop for them: 512 x 512 x 64 took 175 ms of AVX-512's 0.1."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN")
    x, wide = torch.randn(64, 32), torch.randn(48, 3 * 32)
    weight = torch.randn(32, 3 * 48)[:, :48].t() if turned else wide[:, :32]
    with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
        result = _torch.onednn_linear(x, weight, None)
    output = capfd.readouterr().out
    assert "inner_product" in output, f"oneDNN no longer says what it runs: {output!r}"
    assert "ref:any" not in output, output
    torch.testing.assert_close(result, torch.nn.functional.linear(x, weight))


def test_onednn_multiplies_and_convolves_int8() -> None:
    x, weight = (torch.randint(-128, 128, (n, 37), dtype=torch.int8) for n in (5, 7))
    if _torch.onednn_adds_int8_exactly():
        expected = (x.long() @ weight.long().t()).int()
        assert torch.equal(_torch.int8_mm(x, weight), expected), "aten._int_mm is no longer what it was"
    if _torch.onednn_convolves_int8_exactly():
        image, kernel = torch.randint(0, 256, (2, 4, 9, 8)).byte(), weight[:6, :36].reshape(6, 4, 3, 3)[:, :2]
        sizes = ([2, 1], [1, 0], [1, 2])
        packed = _torch.onednn_int8_packed_conv(kernel.contiguous(), image.shape, 131, *sizes, 2)
        found = _torch.onednn_int8_conv(image, packed, 6, 131, *sizes, 2)
        plain = torch.nn.functional.conv2d(image.double() - 131, kernel.double(), None, *sizes, 2)
        assert torch.equal(found.double(), plain), "onednn.qconv_pointwise is no longer what it was"


def test_onednn_convolves_with_a_tail_and_packed_weights() -> None:
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN")
    form = torch.channels_last
    x = torch.randn(2, 4, 6, 5).to(memory_format=form)
    weight, bias = torch.randn(8, 2, 3, 3), torch.randn(8)
    sizes: tuple[list[int], list[int], list[int], int] = ([1, 1], [1, 1], [1, 1], 2)
    packed = _torch.onednn_packed_conv(weight.to(memory_format=form), x.shape, *sizes)
    plain = torch.nn.functional.conv2d(x, weight, bias, padding=1, groups=2)
    result = _torch.onednn_conv(x, packed, bias, *sizes)
    torch.testing.assert_close(result, plain)
    torch.testing.assert_close(_torch.onednn_conv(x, packed, None, *sizes), plain - bias.view(-1, 1, 1))
    assert result.is_contiguous(memory_format=form)
    tanh = torch.nn.functional.gelu(plain, approximate="tanh")
    torch.testing.assert_close(_torch.onednn_conv(x, packed, bias, *sizes, "gelu", "tanh"), tanh)
    x[0, 0, 0, 0] = torch.nan
    gated = _torch.onednn_conv(x, packed, bias, *sizes, "hardswish", "")
    plain = torch.nn.functional.conv2d(x, weight, bias, padding=1, groups=2)
    torch.testing.assert_close(gated, torch.nn.functional.hardswish(plain), equal_nan=True)


@pytest.mark.parametrize("axes", [2, 3])
def test_onednn_convolves_however_images_lie_in_memory(axes: int) -> None:
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN")
    functional = torch.nn.functional
    conv = functional.conv2d if axes == 2 else functional.conv3d
    x, weight, bias = torch.randn(2, 4, *[7] * axes), torch.randn(6, 2, *[3] * axes), torch.randn(6)
    plain = conv(x, weight, bias, 2, 1, 1, 2)
    sizes = ([1] * axes, [2] * axes, [1] * axes, 2)
    result = _torch.onednn_conv(x, weight, bias, *sizes)
    torch.testing.assert_close(result, plain, rtol=1e-4, atol=1e-5)
    assert result.is_contiguous()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
def test_a_tensor_that_changed_is_in_another_state(dtype: torch.dtype) -> None:
    for form in range(4):
        plain = torch.ones(4, 6, 3, 3, dtype=dtype)
        tensor = (plain, plain.to(memory_format=torch.channels_last), plain.mT, plain[:, 1:, ::2])[form]
        before = _torch.state_of(tensor)
        assert _torch.state_of(tensor) == before
        tensor.data.mul_(2)
        through_data = _torch.state_of(tensor)
        assert through_data != before
        tensor[-1, -1, -1, -1] = 5  # which torch counts
        assert _torch.state_of(tensor) != through_data
    assert _torch.state_of(None) is None
    empty = torch.ones(0, dtype=dtype)
    assert _torch.state_of(empty) == _torch.state_of(empty)
    if dtype.is_floating_point:
        unknown = torch.full((3,), torch.nan, dtype=dtype)
        assert _torch.state_of(unknown) == _torch.state_of(unknown)
    assert _torch.state_of(torch.ones(1, dtype=dtype).expand(50)) is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.complex128], ids=str)
@pytest.mark.parametrize("offset", [0, 1])
def test_a_tensor_that_changed_in_one_element_is_in_another_state(dtype: torch.dtype, offset: int) -> None:
    small = torch.ones(1000 + offset, dtype=dtype)[offset:]
    large = torch.ones(70_001 + offset, dtype=dtype)[offset:]
    for tensor, uses, places in ((small, 0, (3, 998, 999)), (large, 1000, (3, 35_002, 69_999, 70_000))):
        for at in places:
            before = _torch.state_of(tensor, uses)
            assert _torch.state_of(tensor, uses) == before
            tensor.data[at] = 0
            assert _torch.state_of(tensor, uses) != before


def test_hooks_of_all_modules_are_laid_aside_and_come_back() -> None:
    called: list[str] = []
    module, x = torch.nn.Linear(2, 2), torch.ones(1, 2, requires_grad=True)
    hooks = torch.nn.modules.module
    for register in (
        hooks.register_module_forward_pre_hook,
        hooks.register_module_forward_hook,
        hooks.register_module_full_backward_pre_hook,
        hooks.register_module_full_backward_hook,
    ):
        assert not _torch.has_global_hooks()
        handle = register(lambda *args: called.append("hook"))
        assert _torch.has_global_hooks()
        with _torch.without_global_hooks():
            assert not _torch.has_global_hooks()
            module(x).sum().backward()
        assert not called
        module(x).sum().backward()
        assert called.pop() == "hook"
        handle.remove()


def test_hooks_of_saved_tensors_are_laid_aside_and_come_back() -> None:
    asked = []

    def hook(name):
        return lambda tensor: (asked.append(name), tensor)[1]

    x = torch.ones(2, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(hook("outer"), hook("outer back")):
        with torch.autograd.graph.saved_tensors_hooks(hook("inner"), hook("inner back")):
            assert _torch.has_saved_tensor_hooks()
            with _torch.without_saved_tensor_hooks():
                assert not _torch.has_saved_tensor_hooks()
                (x * x).sum()
                torch.func.vjp(torch.sin, x)
            assert asked == []
            x.exp()
            assert asked == ["inner"]
        x.exp()
        assert asked == ["inner", "outer"]


def test_checkpointing_stops_by_an_error_of_its_hook() -> None:
    errors = []

    def call(x: torch.Tensor) -> torch.Tensor:
        try:
            return x.exp()
        except Exception as error:
            errors.append(_torch.is_raised_by_saved_tensor_hook(error))
            raise

    x = torch.ones(2, requires_grad=True)
    torch.utils.checkpoint.checkpoint(call, x, use_reentrant=False).sum().backward()
    assert errors == [True], "torch.utils.checkpoint ends a recomputation in another way"
    with torch.autograd.graph.saved_tensors_hooks(torch.Tensor.detach, torch.Tensor.detach):
        with pytest.raises(ValueError, match="of a kernel") as raised:
            raise ValueError("of a kernel")
        assert not _torch.is_raised_by_saved_tensor_hook(raised.value)


def test_torch_tells_alike_tensors_from_others() -> None:
    are_alike = _torch.build_tensor_guard([torch.ones(2, 3), torch.ones(())])
    assert are_alike(torch.zeros(2, 3), torch.zeros(()))
    others = [
        torch.ones(3, 2),
        torch.ones(3, 2).t(),
        torch.ones(2, 3).double(),
        torch.ones(2, 3, device="meta"),
        torch.ones(2, 3).to_sparse(),
        torch._neg_view(torch.ones(2, 3)),
        torch._efficientzerotensor((2, 3)),
    ]
    for other in [*others, torch.ones(2, 3).requires_grad_(), torch.nn.Parameter(torch.ones(2, 3)), None]:
        assert not are_alike(other, torch.ones(())), "torch's look at arguments has become less exact"
    parameter = torch.nn.Parameter(torch.ones(4, 4))
    are_alike = _torch.build_tensor_guard([parameter])
    for change in (torch.t, torch.Tensor.double, lambda t: t.view(2, 8)):
        parameter.data = change(parameter.data)
        assert not are_alike(parameter), "a change by .data is no longer seen"
        parameter.data = torch.ones(4, 4)
        assert are_alike(parameter)


def test_torch_says_how_it_multiplies() -> None:
    assert _torch.float32_matmul_precision() == torch.get_float32_matmul_precision()


SETTINGS_COME_BACK = """
import torch
from burnt import _torch
before = _torch.fp32_settings()
torch.backends.cudnn.conv.fp32_precision = "ieee"
assert _torch.fp32_settings() != before, "torch's newer settings are read elsewhere"
_torch.restore_fp32_settings(before)
assert _torch.fp32_settings() == before
"""


def test_torchs_settings_of_float32_come_back() -> None:
    # In a process of its own: torch's older setting differs afterwards.
    done = forked.run(SETTINGS_COME_BACK)
    assert done.returncode == 0, done.stderr


def test_a_loss_scale_is_adapted_in_place() -> None:
    scale, good = torch.tensor(8.0), torch.tensor(1, dtype=torch.int32)
    _torch.update_loss_scale(scale, good, torch.tensor(1.0), 2.0, 0.5, 3)
    assert (float(scale), int(good)) == (4.0, 0), "the rule of torch.amp.GradScaler has changed"


def test_torch_counts_its_modes() -> None:
    with torch.overrides.TorchFunctionMode():
        assert _torch.count_function_modes() == 1, "a mode is no longer on the stack that is counted"
    for mode in (FlopCounterMode(display=False), FakeTensorMode(), FunctionalTensorMode()):
        with mode:
            assert _torch.count_dispatch_modes() == 1, f"{mode} is no longer on the stack that is counted"
    assert _torch.count_dispatch_modes() == _torch.count_function_modes() == 0


def test_forward_derivatives_have_a_level() -> None:
    before = _torch.forward_ad._current_level
    with torch.autograd.forward_ad.dual_level():
        assert before < 0 <= _torch.forward_ad._current_level


def test_suggest_memory_format() -> None:
    x = torch.empty(2, 3, 4, 5)
    assert _torch.suggest_memory_format(x) == torch.contiguous_format
    assert _torch.suggest_memory_format(x.to(memory_format=torch.channels_last)) == torch.channels_last
    volume = torch.empty(2, 3, 4, 5, 6, memory_format=torch.channels_last_3d)
    assert _torch.suggest_memory_format(volume[..., ::2]) == torch.channels_last_3d


def test_memory_is_allocated_without_dispatch() -> None:
    found = _torch.empty_on_cpu((2, 3), (1, 2), torch.bfloat16)
    assert (found.shape, found.stride(), found.dtype) == ((2, 3), (1, 2), torch.bfloat16)
    assert found.untyped_storage().nbytes() == 12
    assert _torch.empty_on_cpu((), (), torch.int64).shape == ()
    with torch.inference_mode():
        assert _torch.empty_on_cpu((1,), (1,), torch.float32).is_inference()


def test_memory_is_reinterpreted_without_dispatch() -> None:
    base = torch.nn.Parameter(torch.arange(12.0).view(3, 4))[1:]
    found = _torch.reinterpreted(base, (2, 2), (1, 4), 1)
    assert torch.equal(found, base.t()[1:3].detach())
    assert found.data_ptr() == base.data_ptr() + 4
    assert not found.requires_grad
