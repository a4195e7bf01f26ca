"""The only place that touches torch's private interfaces.

Each has a canary in `tests/test_torch_private.py`, which says what broke when torch changes.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

__all__ = [
    "EXTENSION",
    "BatchNormBase",
    "below_autograd",
    "build_tensor_guard",
    "compiled_in_place",
    "compiler_is_loaded",
    "count_dispatch_modes",
    "count_function_modes",
    "decompositions",
    "destroy",
    "fake_call",
    "fake_results",
    "float32_matmul_precision",
    "forward_ad",
    "has_global_hooks",
    "has_mkl",
    "in_forward_ad",
    "in_transform",
    "is_autocast",
    "is_plain_call",
    "matmul_precision",
    "normal_dispatch",
    "onednn_conv",
    "onednn_conv_transpose",
    "onednn_linear",
    "onednn_packed",
    "onednn_packed_conv",
    "onednn_supports",
    "share_memory",
    "state_of",
    "trace_to_aten",
    "version_of",
    "without_autocast",
    "without_global_hooks",
]

BatchNormBase = _BatchNorm
"""The base of torch's BatchNorm1d, 2d and 3d. torch's own tools (`SyncBatchNorm.convert_sync_batchnorm`,
`update_bn`, `replace_all_batch_norm_modules_`) know a batch norm by it."""

EXTENSION: str = torch._C.__file__
"""The file of torch's extension module. It depends on all libraries that torch runs on: a symbol looked up in
it, such as `omp_get_max_threads`, is the one that torch calls."""


def compiled_in_place(module: torch.nn.Module) -> torch.nn.Module:
    """The module inside `torch.compile`'s wrapper, compiled as by `module.compile()`; others as they are.

    The wrapper compiles its own call alone: methods that are found through it call the plain module.
    """
    if not compiler_is_loaded():
        return module
    from torch._dynamo.eval_frame import OptimizedModule
    from torch._dynamo.external_utils import wrap_inline

    if not isinstance(module, OptimizedModule):
        return module
    inner: torch.nn.Module = module._orig_mod
    # Frames of torch's own are skipped: without one around it, torch's Sequential would not be compiled.
    inner._compiled_call_impl = module.dynamo_ctx(wrap_inline(inner._call_impl))
    return inner


def compiler_is_loaded() -> bool:
    """Whether torch.compile's machinery (seconds to import) is there; else nothing is compiled."""
    return "torch._dynamo" in sys.modules


@functools.cache
def decompositions(names: tuple[str, ...]) -> dict[Any, Callable[..., Any]]:
    """torch's own definitions of composite aten ops in simpler ones, for every overload of the names."""
    from torch._decomp import get_decompositions

    return dict(get_decompositions([getattr(torch.ops.aten, name) for name in names]))


@contextlib.contextmanager
def without_saved_tensor_hooks() -> Iterator[None]:
    """Hooks of saved tensors (checkpointing, offloading) are not asked, and are back afterwards.

    torch.func's transforms refuse to run beside them.
    """
    hooks: Any = torch._C._autograd
    aside = []
    while (top := hooks._top_saved_tensors_default_hooks(False)) is not None:
        aside.append(top)
        hooks._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pair in reversed(aside):
            hooks._push_saved_tensors_default_hooks(*pair)


def trace_to_aten(
    fn: Callable[..., Any], args: Sequence[Any], table: dict[Any, Callable[..., Any]]
) -> tuple[torch.fx.GraphModule, Any]:
    """The aten graph of a function at fake tensors of the arguments' shapes, and the structure it returns.

    Tensors that the function captures become attributes of the graph module. Changes in place are taken
    apart: the graph makes new tensors, and what becomes of an argument is copied into it by ``copy_`` nodes.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    structure: list[Any] = []

    def flat(*inputs: Any) -> list[Any]:
        leaves, spec = torch.utils._pytree.tree_flatten(fn(*inputs))
        structure.append(spec)
        return leaves

    def functional(call: Callable[..., Any]) -> torch.fx.GraphModule:
        made = torch.func.functionalize(call, remove="mutations")
        trace = make_fx(made, decomposition_table=table, tracing_mode="fake", _allow_non_fake_inputs=True)
        with _errors_raised_but_not_logged():
            return trace(*args)

    graph = functional(flat)
    # torch's own composite ops are taken apart below the layer that makes them functional.
    if any(_changes_a_value(node) for node in graph.graph.nodes):
        graph = functional(graph)
    return graph, structure[0]


def _changes_a_value(node: torch.fx.Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload) or not node.target._schema.is_mutable:
        return False
    return not (isinstance(node.args[0], torch.fx.Node) and node.args[0].op == "placeholder")


def fake_results(fn: Callable[..., Any], args: Sequence[Any]) -> list[Any]:
    """What a function returns for arguments like these, flat, its tensors without memory.

    No op is taken apart, so strides and `requires_grad` are those of the function run by torch.
    """
    return fake_call(fn, args)[1]


def fake_call(fn: Callable[..., Any], args: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The arguments that `fake_results` runs a function with, as it leaves them, and what it returns."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True), _errors_raised_but_not_logged():
        inputs = [
            torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device=a.device).requires_grad_(
                a.requires_grad
            )
            if isinstance(a, torch.Tensor)
            else a
            for a in args
        ]
        return inputs, list(torch.utils._pytree.tree_leaves(fn(*inputs)))


_quiet = threading.local()


@contextlib.contextmanager
def _errors_raised_but_not_logged() -> Iterator[None]:
    """A context in which an op that does not take its fake arguments raises, and that is all.

    torch logs the traceback of every such error beside raising it. Here the arguments are a user's, who is
    given the error of the eager function.
    """
    before = getattr(_quiet, "depth", 0)
    _fake_log().addFilter(_is_heard)  # one that is there already is not added again
    _quiet.depth = before + 1
    try:
        yield
    finally:
        _quiet.depth = before


def _is_heard(record: logging.LogRecord) -> bool:
    return not getattr(_quiet, "depth", 0)


def _fake_log() -> logging.Logger:
    return logging.getLogger("torch._subclasses.fake_tensor")


def is_autocast() -> bool:
    """Whether autocast is on for any kind of device."""
    return torch._C._is_any_autocast_enabled()


@contextlib.contextmanager
def without_autocast() -> Iterator[None]:
    """A context, or a decorator, in which autocast is off for all kinds of device."""
    with torch._C._DisableAutocast():
        yield


def below_autograd() -> Any:
    """A context in which ops run without autograd, as inside of a kernel for it."""
    return torch._C._AutoDispatchBelowAutograd()


def normal_dispatch() -> Any:
    """A context in which ops are dispatched as in a program of no modes, inside of a kernel too.

    A kernel may be called from within modes and transforms, each of which leaves keys switched off for it;
    tracing and differentiating need them.
    """
    return torch._C._ForceDispatchKeyGuard(*_normal_keys())


@functools.cache
def _normal_keys() -> tuple[Any, Any]:
    found: list[tuple[Any, Any]] = []

    def look() -> None:
        found.append((torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()))

    thread = threading.Thread(target=look)  # a thread begins with the keys that a program begins with
    thread.start()
    thread.join()
    return found[0]


def in_forward_ad() -> bool:
    """Whether forward derivatives are taken."""
    return forward_ad._current_level >= 0


def share_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether tensors are views of one storage."""
    return bool(torch._C._is_alias_of(a, b))  # type: ignore[attr-defined]


def version_of(tensor: torch.Tensor) -> int:
    """How often a tensor was changed in place, as far as torch knows; always 0 in inference mode."""
    return 0 if tensor.is_inference() else tensor._version


# Bytes that are kept as they are: no sum of them is quicker. Uses of each element in a call from which on it
# takes a core some thirty times as long as the sums of all of them.
_FEW_BYTES, _MANY_USES = 1 << 16, 192
_SAMPLES, _SUMS = 1024, 61


def state_of(tensor: torch.Tensor | None, uses: int = 0) -> object:
    """What tells one state of a tensor from others, as long as it is kept.

    Changes through ``.data`` count for nothing in `version_of`: on a CPU the elements are looked at, all of a
    small tensor, and of one that a call uses often (`uses`: how often each element); else some of them.
    """
    if tensor is None:
        return None
    known = id(tensor), version_of(tensor), tensor.data_ptr()
    if not tensor.is_cpu or not tensor.numel():
        return known
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    flat = torch.as_strided(tensor.detach(), (last + 1,), (1,))
    if flat.nbytes <= _FEW_BYTES:
        return *known, _bytes_of(flat)
    # An odd step: of a matrix, rows are met in other columns.
    some = _bytes_of(flat[:: flat.numel() // _SAMPLES | 1].clone())
    return (*known, some) if uses < _MANY_USES else (*known, some, _sums_of(flat))


def _bytes_of(flat: torch.Tensor) -> bytes:
    return flat.view(torch.uint8).numpy().tobytes()


def _sums_of(flat: torch.Tensor) -> tuple[bytes, bytes]:
    """The sums of a vector's bits, in words of 8 bytes, part by part; and the rest."""
    if flat.storage_offset() * flat.itemsize % 8:
        flat = flat.clone()  # words begin at multiples of their size
    whole = max(8 // flat.itemsize, 1) * _SUMS
    end = flat.numel() // whole * whole
    sums = flat[:end].view(torch.int64).view(_SUMS, -1).sum(1)
    return _bytes_of(sums), _bytes_of(flat[end:])


def matmul_precision() -> str:
    """How float32 is multiplied on CUDA by torch's newer switches: ``ieee``, ``tf32`` or ``flex32``."""
    names = {"tf32": "tf32", "bf16": "flex32"}
    return names.get(torch.backends.cuda.matmul.fp32_precision, "ieee")


def convolves_in_tf32() -> bool:
    """Whether cuDNN's convolutions of float32 may be in tf32."""
    return bool(torch._C._get_cudnn_allow_tf32())


def let_convolve_in_tf32(allowed: bool) -> None:
    """Set whether they may; torch's own attribute refuses it once torch's test utilities were imported."""
    torch._C._set_cudnn_allow_tf32(allowed)


def destroy(library: torch.library.Library) -> None:
    """Take back what a library has registered, and the names in ``torch.ops``."""
    library._destroy()  # type: ignore[no-untyped-call]


_GLOBAL_HOOKS: tuple[dict[int, Any], ...] = tuple(
    getattr(torch.nn.modules.module, f"_global_{name}_hooks")
    for name in ("forward_pre", "forward", "backward_pre", "backward")
)


def has_global_hooks() -> bool:
    """Whether somebody wants to know of the calls of all modules."""
    return any(_GLOBAL_HOOKS)


@contextlib.contextmanager
def without_global_hooks() -> Iterator[None]:
    """A context in which nobody is told of the calls of modules that has asked for those of all."""
    kept = [(hooks, dict(hooks)) for hooks in _GLOBAL_HOOKS]
    for hooks, _ in kept:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, before in kept:
            during = dict(hooks)
            hooks.clear()
            hooks.update({**before, **during})


def in_transform() -> bool:
    """Whether a transform of torch.func is at work."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def is_plain_call() -> bool:
    """Whether ops run as they are called: no transform, mode or tracer, and no forward derivatives."""
    return (
        not in_forward_ad()
        and torch._C._functorch.peek_interpreter_stack() is None
        and count_dispatch_modes() == 0
        and count_function_modes() == 0
        and torch._C._get_tracing_state() is None
    )


forward_ad = torch.autograd.forward_ad
"""The module whose ``_current_level`` says whether forward derivatives are taken, as `in_forward_ad` does."""

count_dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
"""How many `TorchDispatchMode` are at work, torch's own among them, such as `FakeTensorMode`."""

count_function_modes: Callable[[], int] = torch._C._len_torch_function_stack
"""How many `TorchFunctionMode` are at work."""

float32_matmul_precision: Callable[[], str] = torch._C._get_float32_matmul_precision
"""`torch.get_float32_matmul_precision`, without its frame."""


def build_tensor_guard(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """Return a function that tests whether as many objects are tensors equivalent to these.

    They must have the same classes, dtypes, devices, shapes, strides and requires_grad, be different objects,
    and dispatch in the same way: transforms, tracers, autocast for their device, inference mode, and lazy
    negation or conjugation must be as now. Not tested: gradient mode, forward derivatives, dispatch and
    function modes. A tensor that has no sizes, such as a nested one, aborts the process, unless its class
    differs from the expected one.

    These are the guards of torch.compile; a call takes 0.15 microseconds.
    """
    shapes: Any = [list(t.shape) for t in tensors]
    strides: Any = [list(t.stride()) for t in tensors]
    guards = torch._C._dynamo.guards.TensorGuards(
        *tensors, dynamic_dims_sizes=shapes, dynamic_dims_strides=strides
    )
    return guards.check


def has_mkl() -> bool:
    """Whether torch multiplies by Intel's MKL."""
    return bool(torch._C.has_mkl)


def onednn_supports(dtype: torch.dtype) -> bool:
    """Whether torch has oneDNN's fully connected layer, and this CPU instructions for a dtype.

    A fact of this machine. Rules that choose ask `burnt.device.processor`.
    """
    ops = torch.ops.mkldnn
    if not torch._C._has_mkldnn or not hasattr(ops, "_linear_pointwise"):
        return False
    if dtype == torch.float16:
        return bool(ops._is_mkldnn_fp16_supported())
    if dtype == torch.bfloat16:
        return bool(ops._is_mkldnn_bf16_supported())
    return dtype == torch.float32


def onednn_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, tail: str = "none", kind: str = "none"
) -> torch.Tensor:
    """``tail(x @ weight.T + bias)`` by oneDNN, which is not differentiated.

    Args:
        x: ``[rows, terms]``.
        weight: ``[columns, terms]`` of any strides, or what `onednn_packed` made of it.
        bias: ``[columns]``.
        tail: ``"none"``, ``"relu"``, ``"gelu"``, ``"tanh"``, ``"sigmoid"`` or ``"swish"``.
        kind: of the gelu, ``"none"`` or ``"tanh"``.
    """
    # With gaps between its rows it is read by oneDNN's loop for any layout (``ref:any`` under
    # ``ONEDNN_VERBOSE=1``), which takes 700 times as long as a product.
    if weight.layout == torch.strided and not (weight.is_contiguous() or weight.t().is_contiguous()):
        weight = weight.t().contiguous().t() if weight.stride(0) == 1 else weight.contiguous()
    made: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, tail, [], kind)
    return made


def onednn_packed(weight: torch.Tensor, rows: int) -> torch.Tensor:
    """A weight in the layout that oneDNN wants for inputs of so many rows."""
    made: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
    return made


def onednn_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    tail: str = "none",
    kind: str = "",
) -> torch.Tensor:
    """``tail(conv(x, weight) + bias)`` by oneDNN, which is not differentiated.

    Args:
        x: ``[batch, channels, *axes]``, images or volumes.
        weight: ``[out_channels, channels / groups, *kernel]``, or what `onednn_packed_conv` made of it; the
            result is channels-last then.
        bias: ``[out_channels]``.
        padding: for each axis, as the next two.
        stride: of the outputs.
        dilation: of the kernel.
        groups: of the channels.
        tail: ``"none"``, ``"gelu"``, ``"swish"`` or ``"hardswish"``.
        kind: of the gelu, ``"none"`` or ``"tanh"``.
    """
    call = torch.ops.mkldnn._convolution_pointwise.default
    made: torch.Tensor = call(x, weight, bias, padding, stride, dilation, groups, tail, [], kind)
    return made


def onednn_conv_transpose(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    padding: Sequence[int],
    output_padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    tail: str = "none",
    kind: str = "",
) -> torch.Tensor:
    """``tail(conv_transpose(x, weight) + bias)`` by oneDNN, as `onednn_conv` otherwise.

    Args:
        x: ``[batch, channels, *axes]``, images or volumes.
        weight: ``[channels, out_channels / groups, *kernel]``, or what `onednn_packed_conv` made of it.
        bias: ``[out_channels]``.
        padding: cut off on each side of an axis.
        output_padding: added at the end of each axis.
        stride: of the inputs.
        dilation: of the kernel.
        groups: of the channels.
        tail: as of `onednn_conv`.
        kind: of the gelu.
    """
    call = torch.ops.mkldnn._convolution_transpose_pointwise
    sizes = (padding, output_padding, stride, dilation, groups)
    made: torch.Tensor = call(x, weight, bias, *sizes, tail, [], kind)
    return made


def onednn_packed_conv(
    weight: torch.Tensor,
    size: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    output_padding: Sequence[int] | None = None,
) -> torch.Tensor:
    """A weight of images or volumes in the layout that oneDNN wants for inputs of such a size.

    With `output_padding` that of a transposed convolution.
    """
    made: torch.Tensor
    if output_padding is None:
        reorder = torch.ops.mkldnn._reorder_convolution_weight
        made = reorder(weight, padding, stride, dilation, groups, list(size))
    else:
        reorder = torch.ops.mkldnn._reorder_convolution_transpose_weight
        made = reorder(weight, padding, output_padding, stride, dilation, groups, list(size))
    return made
