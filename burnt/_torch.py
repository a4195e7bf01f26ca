"""The only module that uses torch's private interfaces.

Each has a test in `tests/test_torch_private.py`, which fails with an explanation if torch changes it.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import math
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

BatchNormBase = _BatchNorm
"""The base of torch's BatchNorm1d, 2d and 3d. torch's own tools (`SyncBatchNorm.convert_sync_batchnorm`,
`update_bn`, `replace_all_batch_norm_modules_`) know a batch norm by it."""

InstanceNormBase = _InstanceNorm
"""The base of torch's InstanceNorm1d, 2d and 3d."""

EXTENSION: str = torch._C.__file__
"""The file of torch's extension module. It depends on all libraries that torch runs on: a symbol looked up in
it, such as `omp_get_max_threads`, is the one that torch calls."""


@contextlib.contextmanager
def restored_modes(module: torch.nn.Module) -> Iterator[None]:
    """Context manager after which each module of a model is in training or evaluation mode as before."""
    modes = [(inner, inner.training) for inner in module.modules()]
    try:
        yield
    finally:
        for inner, training in modes:
            inner.training = training


def compiled_in_place(module: torch.nn.Module) -> torch.nn.Module:
    """Unwrap a module from `torch.compile`'s wrapper, compiled as by `module.compile()`; keep others.

    The wrapper compiles only its own call: methods that are looked up through it call the uncompiled module.
    """
    if not compiler_is_loaded():
        return module
    from torch._dynamo.eval_frame import OptimizedModule
    from torch._dynamo.external_utils import wrap_inline

    if not isinstance(module, OptimizedModule):
        return module
    inner: torch.nn.Module = module._orig_mod
    # Dynamo skips torch's own frames: without the inline wrapper, torch's Sequential would not be compiled.
    inner._compiled_call_impl = module.dynamo_ctx(wrap_inline(inner._call_impl))
    return inner


def without_compilation(module: torch.nn.Module) -> torch.nn.Module:
    """Return the module that `torch.compile` has wrapped; others as they are."""
    if not compiler_is_loaded():
        return module
    from torch._dynamo.eval_frame import OptimizedModule

    return module._orig_mod if isinstance(module, OptimizedModule) else module


def uncompiled(call: Any) -> Any:
    """Return the module or function that `torch.compile` has wrapped; others as they are."""
    if not isinstance(call, torch.nn.Module):
        return getattr(call, "_torchdynamo_orig_callable", call)
    inner = without_compilation(call)
    return inner if inner._compiled_call_impl is None else inner.forward  # compiled in place


def is_compiled(call: object) -> bool:
    """Whether `torch.compile` wraps the call of a module, or a function or method."""
    return getattr(call, "_compiled_call_impl", None) is not None or hasattr(
        call, "_torchdynamo_orig_callable"
    )


def compiler_is_loaded() -> bool:
    """Whether torch._dynamo (seconds to import) is loaded; otherwise nothing is compiled."""
    return "torch._dynamo" in sys.modules


@functools.cache
def decompositions(names: tuple[str, ...]) -> dict[Any, Callable[..., Any]]:
    """Return torch's decompositions of aten ops, for every overload of the names."""
    from torch._decomp import get_decompositions

    return dict(get_decompositions([getattr(torch.ops.aten, name) for name in names]))


def aot_backend(
    compiler: Callable[[str, torch.fx.GraphModule, Sequence[Any]], Callable[[list[Any]], Any]],
    table: dict[Any, Callable[..., Any]],
    draws_again: Callable[[torch.fx.Node], bool],
    rewrite: Callable[[torch.fx.GraphModule], torch.fx.GraphModule],
) -> Callable[..., Any]:
    """Return a backend of torch.compile that gives the graphs of AOTAutograd to a compiler.

    It takes ``"forward"``, ``"backward"`` or ``"inference"``, an aten graph without in-place ops, but for
    ``copy_`` to arguments at its end, and examples of its arguments; what it returns takes a list of
    arguments. Where `draws_again`, and in checkpoints, the backward draws random numbers again:
    `replayed_draw` tells such nodes. `rewrite` takes a graph of forward and backward, which it may change.
    """
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch.utils.checkpoint import CheckpointPolicy

    def partition(joint: torch.fx.GraphModule, inputs: Any, **options: Any) -> Any:
        joint = rewrite(joint)
        for node in joint.graph.nodes:
            if "recompute" not in node.meta and draws_again(node):  # otherwise it is a checkpoint's
                node.meta |= {"recompute": CheckpointPolicy.MUST_RECOMPUTE, "ac_graph_id": 1 << 30}
        return min_cut_rematerialization_partition(joint, inputs, **options)

    return aot_autograd(
        fw_compiler=functools.partial(compiler, "forward"),
        bw_compiler=functools.partial(compiler, "backward"),
        inference_compiler=functools.partial(compiler, "inference"),
        decompositions=table,
        partition_fn=partition,
        keep_inference_input_mutations=True,
    )


def break_reason(graph: torch.fx.GraphModule) -> str | None:
    """Return where and why Dynamo ended a graph that it gave to a backend; None at the function's end."""
    reason: Any = getattr(graph, "compile_subgraph_reason", None)
    if reason is None or not reason.graph_break:
        return None
    lines = reason.reason.splitlines()
    text = "a branch depends on a tensor's value" if lines[0].startswith("generic_jump") else lines[0]
    text += "".join(f": {line.strip()[13:]}" for line in lines if line.startswith("  Explanation: "))
    frame = reason.user_stack[-1] if reason.user_stack else None
    return text if frame is None else f"{frame.filename}:{frame.lineno}, `{frame.line}`: {text}"


def inductor_pass_class() -> type:
    """Return the class of Inductor's passes, which Inductor asks for an id of its cached graphs."""
    from torch._inductor.custom_graph_pass import CustomGraphPass

    return CustomGraphPass


def replayed_draw(node: torch.fx.Node) -> str | None:
    """Return whether a node draws random numbers and returns the state before, or draws those of a state.

    ``"save"``: its arguments are an op and what this takes, it returns the state and the op's results.
    ``"load"``: its arguments are a state, an op and what this takes. None for other nodes.
    """
    from torch._prims import rng_prims

    kinds = {rng_prims.run_and_save_rng_state: "save", rng_prims.run_with_rng_state: "load"}
    return kinds.get(node.target)


def fake_result(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the result of a function without computing it: tensors without memory."""
    from torch._guards import detect_fake_mode
    from torch._subclasses.fake_tensor import FakeTensorMode

    with detect_fake_mode((args, kwargs)) or FakeTensorMode(allow_non_fake_inputs=True):
        return function(*args, **kwargs)


def boxed(call: Callable[..., Any], *, takes_list: bool = False) -> Callable[[list[Any]], Any]:
    """Return a function of a list of arguments, as AOTAutograd calls compiled graphs."""
    from torch._functorch._aot_autograd.utils import make_boxed_func

    if not takes_list:
        return make_boxed_func(call)
    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def with_sizes(graph: torch.fx.GraphModule, arguments: Sequence[Any]) -> torch.fx.GraphModule:
    """Return a graph of open sizes traced for the sizes of arguments; it takes the tensors among them."""

    def call(*tensors: torch.Tensor) -> Any:
        given = iter(tensors)
        return graph(*[next(given) if isinstance(a, torch.Tensor) else a for a in arguments])

    return retraced(call, [a for a in arguments if isinstance(a, torch.Tensor)])


def retraced(
    call: Callable[..., Any],
    tensors: Sequence[torch.Tensor],
    table: dict[Any, Callable[..., Any]] | None = None,
) -> torch.fx.GraphModule:
    """Trace a function of tensors without in-place ops, with fake ones, to an aten graph."""
    from torch.fx.experimental.proxy_tensor import make_fx

    mode: Literal["real", "fake"] = "real" if any(map(is_fake, tensors)) else "fake"
    with torch.no_grad():
        return make_fx(call, table, tracing_mode=mode, _allow_non_fake_inputs=True)(*tensors)


def static_inputs(graph: torch.fx.GraphModule) -> frozenset[int]:
    """Return which arguments of a graph of Dynamo are parameters and buffers."""
    inputs = [node.meta.get("tensor_dict", {}) for node in graph.graph.find_nodes(op="placeholder")]
    return frozenset(i for i, known in enumerate(inputs) if known.get("_dynamo_static_input_type"))


def parameters_of(graph: torch.fx.GraphModule, static: frozenset[int]) -> frozenset[int]:
    """Return which arguments of AOTAutograd's graph are parameters and buffers; `static`: of Dynamo's."""
    from torch._functorch._aot_autograd.descriptors import BufferAOTInput, ParamAOTInput, PlainAOTInput

    sources = [node.meta.get("desc") for node in graph.graph.find_nodes(op="placeholder")]
    return frozenset(
        i
        for i, source in enumerate(sources)
        if isinstance(source, ParamAOTInput | BufferAOTInput)
        or (isinstance(source, PlainAOTInput) and source.idx in static)
    )


@contextlib.contextmanager
def without_saved_tensor_hooks() -> Iterator[None]:
    """Context without saved-tensor hooks (checkpointing, offloading), which are restored afterwards.

    torch.func's transforms refuse to run next to them. Checkpointing counts saved tensors, and must not count
    those of calls that the user has not made.
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


def has_saved_tensor_hooks() -> bool:
    """Whether saved-tensor hooks are active, as inside of a checkpoint that is not reentrant."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


def is_raised_by_saved_tensor_hook(error: BaseException) -> bool:
    """Whether an exception comes from the saved-tensor hook that is active, as its traceback shows.

    Autograd calls the hook when it saves a tensor, so the exception passes through a kernel's call without
    being about it. ``checkpoint(use_reentrant=False)`` ends a recomputation in this way.
    """
    hooks: Any = torch._C._autograd
    top = hooks._top_saved_tensors_default_hooks(False)
    if top is None:
        return False
    hook: Any = inspect.unwrap(top[0])
    while isinstance(hook, functools.partial):
        hook = hook.func
    code = getattr(hook, "__code__", None) or getattr(type(hook).__call__, "__code__", None)
    frames = traceback.walk_tb(error.__traceback__)
    return code is not None and any(frame.f_code is code for frame, _ in frames)


def skip_version_checks(node: Any, positions: Sequence[int]) -> None:
    """Let a node of the autograd graph read saved tensors that were changed in place.

    torch does not check the versions of tensors that hooks unpack.
    """
    saved = node._raw_saved_tensors
    for position in positions:
        saved[position].register_hooks(_unchanged, _unchanged)


def _unchanged(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def trace_to_aten(
    fn: Callable[..., Any], args: Sequence[Any], table: dict[Any, Callable[..., Any]]
) -> torch.fx.GraphModule:
    """Trace a function with fake tensors to an aten graph, whose result is flat.

    Tensors that the function captures become attributes of the graph module. In-place changes are
    functionalized: the graph creates new tensors, and ``copy_`` nodes write an argument's final value to it.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    def flat(*inputs: Any) -> list[Any]:
        return torch.utils._pytree.tree_leaves(fn(*inputs))

    def functional(call: Callable[..., Any]) -> torch.fx.GraphModule:
        result = torch.func.functionalize(call, remove="mutations")
        trace = make_fx(result, decomposition_table=table, tracing_mode="fake", _allow_non_fake_inputs=True)
        with _errors_raised_but_not_logged():
            return trace(*args)

    graph = functional(flat)
    # Some composite ops are decomposed after functionalization, into in-place ops: functionalize again.
    if any(_changes_a_value(node) for node in graph.graph.nodes):
        graph = functional(graph)
    return graph


def _changes_a_value(node: torch.fx.Node) -> bool:
    if not writes_to_argument(node.target):
        return False
    return not (isinstance(node.args[0], torch.fx.Node) and node.args[0].op == "placeholder")


def fake_results(fn: Callable[..., Any], args: Sequence[Any]) -> list[Any]:
    """Return a function's results for fake arguments like these, as a flat list of fake tensors.

    No op is decomposed, so strides and `requires_grad` are the eager function's.
    """
    return fake_call(fn, args)[1]


def fake_call(fn: Callable[..., Any], args: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Like `fake_results`, but also return the fake arguments after the call."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    with fake_mode, without_saved_tensor_hooks(), _errors_raised_but_not_logged():
        inputs = [
            torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device=a.device).requires_grad_(
                a.requires_grad
            )
            if isinstance(a, torch.Tensor)
            else a
            for a in args
        ]
        return inputs, list(torch.utils._pytree.tree_leaves(fn(*inputs)))


def suggest_memory_format(tensor: torch.Tensor) -> torch.memory_format:
    """Return the format that torch's kernels for images select by a tensor's strides."""
    from torch._prims_common import suggest_memory_format as suggest

    memory_format: torch.memory_format = suggest(tensor)
    return memory_format


def real_tensors() -> Any:
    """Context within `fake_call` in which tensors are created with memory, and ops on them run."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    return unset_fake_temporarily()


_quiet = threading.local()


@contextlib.contextmanager
def _errors_raised_but_not_logged() -> Iterator[None]:
    """Context in which an op that fails with fake arguments raises without logging.

    torch also logs the traceback of every such error. Here the arguments are a user's, who gets the error of
    the eager function.
    """
    before = getattr(_quiet, "depth", 0)
    _fake_log().addFilter(_is_heard)  # adding the same filter again has no effect
    _quiet.depth = before + 1
    try:
        yield
    finally:
        _quiet.depth = before


def _is_heard(record: logging.LogRecord) -> bool:
    return not getattr(_quiet, "depth", 0)


def _fake_log() -> logging.Logger:
    return logging.getLogger("torch._subclasses.fake_tensor")


def missing_onnx_ops(program: torch.export.ExportedProgram, opset: int) -> list[str]:
    """Return the names of the ops in a program that `torch.onnx.export` has no translation for, sorted."""
    from torch.onnx._internal.exporter import _core, _registration

    registry = _registration.ONNXRegistry.from_torchlib(opset_version=opset)
    # The exporter first decomposes the ops that it cannot translate and torch can decompose.
    decomposed = _core._prepare_exported_program_for_export(program, registry=registry)
    targets = {node.target for node in decomposed.graph.nodes if node.op == "call_function"}
    ops = [target for target in targets if isinstance(target, torch._ops.OpOverload)]
    return sorted(str(op) for op in ops if not registry.is_registered(op))


def writes_to_argument(target: object) -> bool:
    """Whether a node's target is an op that changes an argument in place, such as ``aten.add_.Tensor``."""
    return isinstance(target, torch._ops.OpOverload) and bool(target._schema.is_mutable)


def is_autocast() -> bool:
    """Whether autocast is on for any device type."""
    return torch._C._is_any_autocast_enabled()


@contextlib.contextmanager
def without_autocast() -> Iterator[None]:
    """Context or decorator in which autocast is off for all device types."""
    with torch._C._DisableAutocast():
        yield


def is_lazy(tensor: torch.Tensor) -> bool:
    """Whether memory does not hold a tensor's elements: lazily negated, conjugated, or torch's zero tensor.

    The zero tensor (``torch._efficientzerotensor``) has no memory. It is the gradient of `sgn`, for one.
    """
    return tensor.is_neg() or tensor.is_conj() or tensor._is_zerotensor()


def materialized(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with its elements in memory: itself unless it `is_lazy`."""
    if tensor._is_zerotensor():
        tensor = tensor.clone()
    return tensor.resolve_conj().resolve_neg()


def kernel_backward(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate the backward of an autograd function that runs kernels.

    Autocast is off, wherever `backward` is called, and incoming gradients are `materialized`.
    """

    @functools.wraps(backward)
    def run(ctx: Any, *grad_outs: torch.Tensor | None) -> Any:
        with torch._C._DisableAutocast():
            return backward(ctx, *[None if g is None else materialized(g) for g in grad_outs])

    return run


def below_autograd() -> Any:
    """Context in which ops run below autograd, as in an autograd kernel."""
    return torch._C._AutoDispatchBelowAutograd()


def normal_dispatch() -> Any:
    """Context with the default dispatch keys, as in a program without modes, also inside a kernel.

    A kernel may be called by modes and transforms, which exclude dispatch keys that tracing and
    differentiation need.
    """
    return torch._C._ForceDispatchKeyGuard(*_normal_keys())


@functools.cache
def _normal_keys() -> tuple[Any, Any]:
    found: list[tuple[Any, Any]] = []

    def read_keys() -> None:
        found.append((torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()))

    thread = threading.Thread(target=read_keys)  # a new thread starts with the default keys
    thread.start()
    thread.join()
    return found[0]


def in_forward_ad() -> bool:
    """Whether forward-mode AD is active."""
    return forward_ad._current_level >= 0


def share_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether tensors are views of one storage."""
    return bool(torch._C._is_alias_of(a, b))  # type: ignore[attr-defined]


def version_of(tensor: torch.Tensor) -> int:
    """Return torch's version counter of a tensor, which counts in-place changes; 0 in inference mode."""
    return 0 if tensor.is_inference() else tensor._version


# Tensors of up to so many bytes are compared as a whole, which is as fast as summing them. From so many uses
# of each element, a call takes a core some thirty times as long as the sums of all elements.
_FEW_BYTES, _MANY_USES = 1 << 16, 192
_SAMPLES, _SUMS = 1024, 61


def state_of(tensor: torch.Tensor | None, uses: int = 0) -> object:
    """Return a fingerprint of a tensor's identity and values, valid while the tensor is alive.

    The version counter misses changes through ``.data``, so on a CPU the fingerprint includes elements: all
    of a small tensor, or if a call uses each element often (`uses` times); otherwise a sample.
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
    # The step is odd, so that the samples from a matrix are in different columns.
    some = _bytes_of(flat[:: flat.numel() // _SAMPLES | 1].clone())
    return (*known, some) if uses < _MANY_USES else (*known, some, _sums_of(flat))


def _bytes_of(flat: torch.Tensor) -> bytes:
    return flat.view(torch.uint8).numpy().tobytes()


def _sums_of(flat: torch.Tensor) -> tuple[bytes, bytes]:
    """Return the sums of a vector's bits in 8-byte words, per section, and the remaining bytes."""
    if flat.storage_offset() * flat.itemsize % 8:
        flat = flat.clone()  # words must be aligned
    whole = max(8 // flat.itemsize, 1) * _SUMS
    end = flat.numel() // whole * whole
    sums = flat[:end].view(torch.int64).view(_SUMS, -1).sum(1)
    return _bytes_of(sums), _bytes_of(flat[end:])


def matmul_precision() -> str:
    """Return torch's newer setting for float32 matmuls on CUDA: ``ieee``, ``tf32`` or ``flex32``."""
    names = {"tf32": "tf32", "bf16": "flex32"}
    return names.get(torch.backends.cuda.matmul.fp32_precision, "ieee")


def fp32_settings() -> dict[tuple[str, str], str]:
    """Return torch's newer settings of float32 arithmetic, by backend and op.

    Unlike the older ones, they can be read in any state, and restored with `restore_fp32_settings`.
    """
    places = (("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn"), ("mkldnn", "matmul"))
    return {place: torch._C._get_fp32_precision_getter(*place) for place in places}


def restore_fp32_settings(settings: Mapping[tuple[str, str], str]) -> None:
    """Restore what `fp32_settings` returned."""
    for place, name in settings.items():
        torch._C._set_fp32_precision_setter(*place, name)


def convolves_in_tf32() -> bool | None:
    """Return whether cuDNN may use tf32; None if a program has used torch's older and newer settings."""
    try:
        return bool(torch._C._get_cudnn_allow_tf32())
    except RuntimeError:
        return None


def let_convolve_in_tf32(allowed: bool) -> None:
    """Set whether they may use tf32; torch's own attribute is blocked by torch's test utilities."""
    torch._C._set_cudnn_allow_tf32(allowed)


def destroy(library: torch.library.Library) -> None:
    """Unregister all ops of a library, and their names in ``torch.ops``."""
    library._destroy()  # type: ignore[no-untyped-call]


_GLOBAL_HOOKS: tuple[dict[int, Any], ...] = tuple(
    getattr(torch.nn.modules.module, f"_global_{name}_hooks")
    for name in ("forward_pre", "forward", "backward_pre", "backward")
)


def has_global_hooks() -> bool:
    """Whether global module hooks are registered."""
    return any(_GLOBAL_HOOKS)


@contextlib.contextmanager
def without_global_hooks() -> Iterator[None]:
    """Context without global module hooks, which are restored afterwards."""
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


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether a tensor stands for one without memory or in a trace."""
    return type(tensor).__module__.startswith("torch._subclasses")


def is_wrapped(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one of a transform, such as functionalization, around another tensor."""
    is_functional = torch._is_functional_tensor(tensor)
    return is_functional or bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def in_transform() -> bool:
    """Whether a torch.func transform is active, or the older vmap of batched gradients."""
    return torch._C._functorch.peek_interpreter_stack() is not None or _in_older_vmap()


def is_plain_call() -> bool:
    """Whether ops run eagerly: no transform, mode or tracer is active, and no forward-mode AD."""
    return (
        not in_forward_ad()
        and torch._C._functorch.peek_interpreter_stack() is None
        and count_dispatch_modes() == 0
        and count_function_modes() == 0
        and torch._C._get_tracing_state() is None
        and not _in_older_vmap()
    )


def is_recorded() -> bool:
    """Whether a compiler, an export or ``torch.jit.trace`` records the ops of a call for other programs."""
    return torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None


def is_plain_backward() -> bool:
    """Whether a backward may run kernels: it is a plain call, and its ops are not recorded in a graph.

    They are recorded under ``create_graph=True``, for second derivatives.
    """
    return not torch.is_grad_enabled() and is_plain_call()


_in_older_vmap: Callable[[], bool] = functools.partial(
    torch._C._dispatch_tls_is_dispatch_key_included, torch._C._dispatch_key_parse("VmapMode")
)
"""Whether the vmap is active that ``torch.autograd.grad(..., is_grads_batched=True)`` uses."""


forward_ad = torch.autograd.forward_ad
"""The module whose ``_current_level`` is at least 0 while forward-mode AD is on, as in `in_forward_ad`."""

count_dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
"""The number of active `TorchDispatchMode`s, including torch's own, such as `FakeTensorMode`."""

count_function_modes: Callable[[], int] = torch._C._len_torch_function_stack
"""The number of active `TorchFunctionMode`s."""

update_loss_scale: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float, float, int], torch.Tensor] = (
    torch._amp_update_scale_
)
"""The rule of torch.amp.GradScaler, in place: scale, good steps (int32), overflowed (float32), growth,
backoff, interval."""

float32_matmul_precision: Callable[[], str] = torch._C._get_float32_matmul_precision
"""`torch.get_float32_matmul_precision`, without its Python frame."""


def current_device() -> Callable[[], int]:
    """Return the fastest function that returns the current CUDA device, of a process that has used one."""
    return getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)


def build_tensor_guard(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """Return a function that tests whether as many objects are tensors equivalent to these.

    They must have the same classes, dtypes, devices, shapes, strides and requires_grad, be different objects,
    and dispatch in the same way: transforms, tracers, autocast for their device, inference mode, and whether
    they are lazy (`is_lazy`) must be as now. Not tested: gradient mode, forward derivatives, dispatch and
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


_guards: Any = torch._C._dynamo.guards

empty_on_cpu: Callable[[Sequence[int], Sequence[int], torch.dtype], torch.Tensor] = _guards._empty_strided_cpu
"""`torch.empty_strided` on the CPU, without dispatch: modes do not see it."""

reinterpreted: Callable[[torch.Tensor, Sequence[int], Sequence[int], int], torch.Tensor] = (
    _guards._reinterpret_tensor
)
"""A tensor over the memory of another, of this shape, these strides and this distance in elements; without
dispatch, gradient, or the base's counter of versions."""


def has_mkl() -> bool:
    """Whether torch's matmuls use Intel's MKL."""
    return bool(torch._C.has_mkl)


def onednn_supports(dtype: torch.dtype) -> bool:
    """Whether torch has oneDNN's linear layer for a dtype, and this CPU has instructions for it.

    This is a property of this machine. Rules that select kernels use `burnt.device.processor` instead.
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
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    epilogue: str = "none",
    kind: str = "none",
) -> torch.Tensor:
    """Compute ``epilogue(x @ weight.T + bias)`` with oneDNN; not differentiable.

    The weight has any strides, or is the result of `onednn_packed`. `epilogue` is ``"none"``, ``"relu"``,
    ``"gelu"`` of the `kind` ``"none"`` or ``"tanh"``, ``"tanh"``, ``"sigmoid"`` or ``"swish"``.
    """
    # For a weight with gaps between its rows, oneDNN uses its reference loop (``ref:any`` under
    # ``ONEDNN_VERBOSE=1``), which takes 700 times as long as its matmul.
    if weight.layout == torch.strided and not (weight.is_contiguous() or weight.t().is_contiguous()):
        weight = weight.t().contiguous().t() if weight.stride(0) == 1 else weight.contiguous()
    bias = None if bias is None else bias.contiguous()  # oneDNN ignores its strides
    result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, epilogue, [], kind)
    return result


def int8_mm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Multiply int8 ``x [m, k]`` by int8 ``weight [n, k]``, transposed: int32 ``[m, n]``, by oneDNN."""
    result: torch.Tensor = torch.ops.aten._int_mm(x, weight.t())
    return result


def replicated_kinds() -> tuple[type, ...]:
    """Return the class that ``replicate``, torch's other DistributedDataParallel, gives a module, if used."""
    module = sys.modules.get("torch.distributed._composable.replicate")
    return () if module is None else (module.DDP,)


def default_store() -> Any:
    """Return the store by which the processes of torch.distributed's default group have met."""
    return torch.distributed.distributed_c10d._get_default_store()


@functools.cache
def onednn_adds_int8_exactly() -> bool:
    """Whether oneDNN sums products of 8-bit integers exactly.

    On x86 without VNNI it adds pairs of them in 16 bits, which saturate.
    """
    if not torch._C._has_mkldnn:
        return False
    large = torch.full((64, 64), 127, dtype=torch.int8)
    signs = torch.where(torch.arange(64) % 2 == 0, 127, -128).to(torch.int8)
    return all(
        torch.equal(int8_mm(a, b).to(torch.int64), a.to(torch.int64) @ b.to(torch.int64).t())
        for a in (large, large * signs)
        for b in (large, large * signs)
    )


@functools.cache
def onednn_convolves_int8_exactly() -> bool:
    """Whether oneDNN's convolutions sum products of uint8 and int8 exactly, as `onednn_adds_int8_exactly`.

    With AVX2 its matmul of int8 can be exact where its convolution is not.
    """
    if not onednn_adds_int8_exactly():
        return False
    x = torch.full((1, 64, 3, 3), 255, dtype=torch.uint8)
    signs = torch.where(torch.arange(64) % 2 == 0, 127, -128).to(torch.int8)
    weight = torch.stack([torch.full((64, 1, 1), 127, dtype=torch.int8), signs[:, None, None]] * 8)
    sizes = [1, 1], [0, 0], [1, 1], 1
    packed = onednn_int8_packed_conv(weight, x.shape, 0, *sizes)
    sums = onednn_int8_conv(x, packed, len(weight), 0, *sizes)
    expected = 255 * weight.sum((1, 2, 3), dtype=torch.float32)
    return torch.equal(sums, expected.view(1, -1, 1, 1).expand_as(sums))


def onednn_int8_packed_conv(
    weight: torch.Tensor,
    size: Sequence[int],
    zero_point: int,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    """Repack an int8 convolution weight for uint8 inputs of a size and with a zero point."""
    ones = torch.ones(weight.shape[0])
    sizes = (stride, padding, dilation)
    prepack = torch.ops.onednn.qconv_prepack
    result: torch.Tensor = prepack(weight, ones, 1.0, zero_point, *sizes, groups, list(size))
    return result


def onednn_int8_conv(
    x: torch.Tensor,
    packed: torch.Tensor,
    channels: int,
    zero_point: int,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    """Convolve ``x - zero_point``, uint8, with a weight of `onednn_int8_packed_conv`: sums as float32."""
    ones, zeros = torch.ones(channels), torch.zeros(channels, dtype=torch.int32)
    sizes = (stride, padding, dilation)
    result: torch.Tensor = torch.ops.onednn.qconv_pointwise(
        x, 1.0, zero_point, packed, ones, zeros, None, *sizes, groups, 1.0, 0, torch.float32, "none", [], ""
    )
    return result


def onednn_packed(weight: torch.Tensor, rows: int) -> torch.Tensor:
    """Repack a weight to the layout that oneDNN prefers for inputs with this number of rows."""
    result: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
    return result


def onednn_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    epilogue: str = "none",
    kind: str = "",
) -> torch.Tensor:
    """Compute ``epilogue(conv(x, weight) + bias)`` with oneDNN; not differentiable.

    ``x`` are images or volumes. The weight is as in torch, or the result of `onednn_packed_conv`; then the
    output is channels-last. `epilogue` is ``"none"``, ``"gelu"`` of the `kind` ``"none"`` or ``"tanh"``,
    ``"swish"`` or ``"hardswish"``.
    """
    bias = None if bias is None else bias.contiguous()
    call = torch.ops.mkldnn._convolution_pointwise.default
    result: torch.Tensor = call(x, weight, bias, padding, stride, dilation, groups, epilogue, [], kind)
    return result


def onednn_packed_conv(
    weight: torch.Tensor,
    size: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    """Repack a convolution's weight to the layout that oneDNN prefers for inputs of a size."""
    reorder = torch.ops.mkldnn._reorder_convolution_weight
    result: torch.Tensor = reorder(weight, padding, stride, dilation, groups, list(size))
    return result


def float8_mm(
    x: torch.Tensor, weight: torch.Tensor, x_scale: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Multiply float8 matrices ``[m, k]`` and ``[n, k]``, transposed, by cuBLASLt on a GPU.

    The scales are float32 with one element, or, for a bfloat16 result, ``[m, 1]`` and ``[1, n]``. `dtype` is
    float32 or a 16-bit float.
    """
    result: torch.Tensor = torch._scaled_mm(x, weight.t(), x_scale, scale, out_dtype=dtype)
    return result


def interpolate_antialiased(
    image: torch.Tensor,
    size: Any,
    scale_factor: Any,
    mode: str,
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
) -> torch.Tensor:
    """Return ``F.interpolate`` of ``[N, C, H, W]`` with antialiasing, also where the result is 1 pixel wide.

    For a width of 1, torch 2.13 repeats the first row on the CPU, and of uint8 a result of 1 x 1 is an
    internal assertion. So one axis is resized after the other there, with two columns.
    """

    def interpolate(image: torch.Tensor, size: Any, factor: Any) -> torch.Tensor:
        return F.interpolate(image, size, factor, mode, align_corners, recompute_scale_factor, antialias=True)

    def resize_rows(image: torch.Tensor, axis: int) -> torch.Tensor:
        columns = max(image.shape[-1], 2)
        wide = image.expand(*image.shape[:-1], columns) if image.shape[-1] == 1 else image
        size = None if sizes is None else (sizes[axis], columns)
        factor = None if factors is None else (factors[axis], 1.0)
        return interpolate(wide, size, factor)[..., : image.shape[-1]]

    if torch.compiler.is_exporting():  # programs name the op, and have no branch on a size that is open
        return interpolate(image, size, scale_factor)
    if image.dtype in (torch.float16, torch.bfloat16) and image.device.type == "cpu":  # torch has no kernel
        options = mode, align_corners, recompute_scale_factor
        return interpolate_antialiased(image.float(), size, scale_factor, *options).to(image.dtype)
    sizes, factors = ((v, v) if isinstance(v, int | float) else v for v in (size, scale_factor))
    width = sizes[1] if sizes is not None else math.floor(image.shape[-1] * factors[1])
    if width != 1:
        return interpolate(image, size, scale_factor)
    return resize_rows(resize_rows(image.mT, 1).mT, 0)
