"""export: write a module as an ONNX file, and compare the file with the module in ONNX Runtime.

torch's exporter does the translation. burnt adds what it leaves to the user: its own ops are replaced by
their references, the batch axis stays open, nested arguments become named inputs, ops without a translation
are all named at once, and the written file is run next to the module before the call returns.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import io
import json
import logging
import os
import re
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from burnt._files import replacing
from burnt._independence import TOLERANCE
from burnt._torch import missing_onnx_ops, restored_modes, without_compilation, writes_to_argument
from burnt._version import __version__
from burnt.errors import (
    BurntError,
    InputRuntimeError,
    InputTypeError,
    InputValueError,
    ShapeError,
    UnsupportedError,
)
from burnt.inspect.meta import batch_size_of
from burnt.inspect.signature import Signature, TensorInfo, signature_of
from burnt.inspect.specs import tensors_in
from burnt.kernels import decompositions
from burnt.nn.quantized import Quantized
from burnt.onnx.axes import (
    OPEN_AXIS,
    Limit,
    axes_of_imported,
    fixed_axis_error,
    items_depend,
    limits_in,
    with_named_batch,
    with_open_axes,
    without_batch,
)
from burnt.onnx.comparison import compare, first_line, require_numbers, rounded_copy, store_in_16_bits
from burnt.onnx.importer.module import ImportedModule
from burnt.onnx.translations import (
    FLOAT8,
    OPSET_4_BITS,
    OPSET_FLOAT8,
    expand_masks,
    quantize_in_shape,
    reads_only_quantized,
    store_packed_weights,
    translations,
)
from burnt.scheme import QuantScheme

OPSET = 20
"""The version of ONNX's operators that is written: the newest that all the runtimes in docs/ship.md read."""

OPSETS = range(18, 26)
"""The versions that can be written; with 26, ONNX Runtime 1.32 lacks kernels for norms and attention."""

_WEIGHTS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_DTYPES = {"bool", "float16", "float32", "float64", "int8", "int16", "int32", "int64"}
_DTYPES |= {"uint8", "uint16", "uint32", "uint64"}
_BATCHES = (1, 3)  # the numbers of items with which the file is compared
_TOLERANCE, _TOLERANCE_FLOAT16, _TOLERANCE_QUANTIZED = 1e-4, 4e-3, 2e-2
_MAX_BYTES = 2**31 - 2**20  # of weights: protobuf's limit for a file, less some space for the graph


@dataclass(frozen=True)
class Exported:
    """The result of `export`.

    Args:
        path: the file.
        size: the file's size in bytes.
        signature: what the file takes and returns; its inputs and outputs have these names.
        errors: the largest difference between the file in ONNX Runtime and the module, by the number of
            items: relative to the largest output, but absolute where that is below 1.
        limits: the largest sizes of open axes that end with a table, such as one of positions, by name.
        fixed: why axes that the file of an imported model leaves open are fixed in this one, by name.
        has_items: False where the axis that would be the batch has the name ``axis_0`` instead, since outputs
            depend on its other entries.
    """

    path: Path
    size: int
    signature: Signature
    errors: Mapping[int, float] = field(default_factory=dict)
    limits: Mapping[str, Limit] = field(default_factory=dict)
    fixed: Mapping[str, str] = field(default_factory=dict)
    has_items: bool = True

    def __str__(self) -> str:
        lines = [f"{self.path}, {self.size:,} bytes", f"  {self.signature}"]
        lines += [f"  {axis}: {limit}" for axis, limit in self.limits.items()]
        lines += [f"  {axis}: fixed, since {reason}" for axis, reason in self.fixed.items()]
        if not self.has_items:
            lines.append(f"  {OPEN_AXIS}: open, and not a batch, since outputs depend on its other entries")
        lines += [f"  batch {batch}: largest error {error:.1e}" for batch, error in self.errors.items()]
        return "\n".join(lines)


def export(
    model: nn.Module,
    example: Any,
    path: str | os.PathLike[str],
    *,
    batch: int | None = None,
    open_axes: Mapping[str, Mapping[int, str]] | None = None,
    weights: str = "float32",
    fold: bool = True,
    metadata: Mapping[str, str] | None = None,
    tolerance: float | None = None,
    opset: int | None = None,
) -> Exported:
    """Write a module as an ONNX file, in evaluation mode.

    Args:
        model: any module; it is not changed. Of one from `torch.compile`, the original. One on another device
            is exported from a copy on the CPU.
        example: its inputs: a tensor, a tuple of arguments, a dict of keyword arguments, or a `Signature`.
        path: the file to write; an older one is replaced once the new one is complete.
        batch: a fixed number of items; by default the batch axis is open.
        open_axes: further axes of any size, by input and axis, with their names:
            ``{"tokens": {1: "sequence"}}``. Axes of one name have the same size; ``"batch"`` is the batch,
            for inputs in which it is not the first axis. None for those that the file of an imported model
            leaves open, as far as they can be and `batch` is not fixed. Where a table of positions ends, an
            axis does so, too.
        weights: ``"float32"``, or ``"float16"`` or ``"bfloat16"`` for matrices stored in 16 bits. The
            computation stays in float32, with the rounded weights.
        fold: compute weights anew where that saves work, as for a convolution with a norm after it; never
            those in 16 bits.
        metadata: texts to store in the file, next to the versions of burnt and torch and the signature.
        tolerance: the largest difference from the module that is accepted, relative to the largest output.
            None for 1e-4; 4e-3 where parameters are float16; or 2e-2 where layers quantize their inputs: a
            number halfway between two integers may be rounded to either, as the sums before it are rounded.
        opset: the version of ONNX's operators, 18 to 25. None for 20, which all the runtimes in docs/ship.md
            read, or 21 for weights of 4 bits or blocks of float8. With 23, RMS norms, rotary embeddings and
            attention are ONNX's own ops instead of several; layer norms are since 17, GELU since 20.

    Quantized layers become QuantizeLinear, DequantizeLinear and MatMulInteger. Their weights stay integers in
    the file: of 8 bits, or 4 for 4- and 2-bit weights, which opsets below 21 store in 8. Weights of float8
    need opset 19, with blocks 21. From opset 21 on, ONNX Runtime may round the inputs of matmuls to 8 bits,
    too (errors of about 0.5 %), unless its session option ``session.qdq_matmulnbits_accuracy_level`` is 1, as
    it is in the comparison here.

    Returns:
        What was written, and how far the file's outputs are from the module's.

    Raises:
        UnsupportedError: a package is missing, the module cannot be traced, ops or a quantization scheme have
            no translation, or the file would be larger than 2 GB.
        InputRuntimeError: an open axis cannot stay open, or the file computes something else.
        InputTypeError: `model` is not a module, or does not take the example.
        InputValueError: an option is invalid, or a weight is NaN or does not fit the dtype.
        OSError: the file cannot be written.

    >>> import tempfile, burnt.onnx
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     exported = export(nn.Linear(3, 2), torch.zeros(4, 3), f"{folder}/linear.onnx")
    >>> print(exported.signature)
    input: float32[batch, 3] -> output: float32[batch, 2]
    """
    _require_packages()
    if not isinstance(model, nn.Module):
        raise InputTypeError(
            "model is not a module",
            expected="a torch.nn.Module",
            found=type(model).__name__,
            hint="call the function in the forward of a module" if callable(model) else None,
        )
    model = without_compilation(model)
    if weights not in _WEIGHTS:
        raise InputValueError(
            "weights= is invalid", expected=" or ".join(map(repr, _WEIGHTS)), found=repr(weights)
        )
    if batch is not None and batch < 1:
        raise InputValueError("batch= is invalid", expected="at least 1", found=batch)
    if opset is not None and opset not in OPSETS:
        raise InputValueError(
            "opset= is invalid", expected=f"{OPSETS[0]} to {OPSETS[-1]}, or None", found=repr(opset)
        )
    target = Path(path)
    if not target.parent.is_dir() or (target.exists() and not target.is_file()):
        raise InputValueError(
            "this is not a path for a file",
            found=str(target),
            hint="it is a folder or a device" if target.exists() else f"there is no folder {target.parent}",
        )
    require_numbers(model)
    dtype = _WEIGHTS[weights]
    with restored_modes(model):
        model.eval()
        if isinstance(example, Signature):
            signature = example
        else:
            signature = _named_as_imported(model, _signature(model, example, batch, open_axes or {}))
        _require_tensors(signature)
        signature = with_named_batch(signature, open_axes or {})
        layers = [layer for layer in model.modules() if isinstance(layer, Quantized)]
        _require_schemes(model, opset)
        if opset is None:
            opset = max([OPSET, *(_first_opset(layer.scheme) for layer in layers)])
        if tolerance is None:
            tolerance = _tolerance(model, layers)
        batches = _BATCHES if batch is None else (batch,)
        settings = _Settings(target, dtype, fold, metadata, opset, batches, tolerance)
        source = _copy_for_export(model, dtype)
        if batch is not None:
            if _is_resized(example, signature, batch) and _items_depend(source, signature, settings):
                raise _dependent_items_error(source, f"batch={batch}")
            signature = _with_batch(signature, batch)
            open_axes = {
                name: {axis: symbol for axis, symbol in names.items() if symbol != "batch"}
                for name, names in (open_axes or {}).items()
            }
        found = axes_of_imported(model, signature) if open_axes is None else {}
        if not found:
            return _write(source, signature, open_axes or {}, settings)
        try:
            return _write(source, signature, found, settings)
        except (InputRuntimeError, UnsupportedError) as error:
            names = sorted({name for axes in found.values() for name in axes.values()})
            reason = error.args[0] if error.found is None else f"{error.args[0]}: {error.found}"
            exported = _write(source, signature, {}, settings)
            return replace(exported, fixed=dict.fromkeys(names, reason))


def _tolerance(model: nn.Module, layers: Sequence[Quantized]) -> float:
    if any(layer.scheme.activations for layer in layers):
        return _TOLERANCE_QUANTIZED
    is_float16 = any(parameter.dtype == torch.float16 for parameter in model.parameters())
    return _TOLERANCE_FLOAT16 if is_float16 else _TOLERANCE


@dataclass(frozen=True)
class _Settings:
    """The options of `export` that say how a file is written."""

    target: Path
    dtype: torch.dtype
    fold: bool
    metadata: Mapping[str, str] | None
    opset: int
    batches: tuple[int, ...]
    tolerance: float


def _write(
    source: nn.Module, signature: Signature, open_axes: Mapping[str, Mapping[int, str]], settings: _Settings
) -> Exported:
    """Write a module on the CPU with some open axes, and compare the file with it."""
    signature, axes = with_open_axes(signature, open_axes)
    optimize = settings.fold and settings.dtype == torch.float32
    written, limits = _translate(source, signature, axes, settings.opset, optimize)
    if settings.dtype != torch.float32:
        store_in_16_bits(written, settings.dtype)
    signature = _with_batch_axes_of_outputs(signature, written)
    if _items_depend(source, signature, settings):
        if any("batch" in names.values() for names in open_axes.values()):
            raise _dependent_items_error(source, "open_axes")
        return replace(_write(source, *without_batch(signature, open_axes), settings), has_items=False)
    written.metadata_props.update(_metadata(signature, limits, settings.metadata))
    written.graph.name = type(source).__name__
    with replacing(settings.target) as temporary:
        _save(written, temporary)
        errors = compare(
            temporary, source, signature, axes, settings.batches, settings.tolerance, limits=limits
        )
    ends = {name: limit for name, limit in limits.items() if limit.largest is not None}
    return Exported(settings.target, settings.target.stat().st_size, signature, errors, ends)


def _items_depend(source: nn.Module, signature: Signature, settings: _Settings) -> bool:
    return items_depend(source, signature, max(TOLERANCE, settings.tolerance))


def _is_resized(example: Any, signature: Signature, batch: int) -> bool:
    """Whether the example has another number of items than the file will have."""
    sizes = {info.shape[info.batch_axis] for info in signature.inputs if info.batch_axis is not None}
    if not isinstance(example, Signature):
        sizes.add(batch_size_of(list(tensors_in(example))) or batch)
    return not sizes <= {batch}


def _dependent_items_error(model: nn.Module, where: str) -> InputRuntimeError:
    return InputRuntimeError(
        f"the outputs of {type(model).__name__} for an item depend on the other items of its batch",
        where=where,
        expected="items that are independent along the axis of the batch",
        hint="give an axis that does not hold items, such as a sequence, another name in open_axes=, and "
        '"batch" to the axis of the items; or fix the batch to the size of the example',
    )


class _Flat(nn.Module):
    """A module with flat lists of tensors as arguments and results."""

    def __init__(self, model: nn.Module, signature: Signature) -> None:
        super().__init__()
        self.model = model
        self._signature = signature

    def forward(self, *tensors: Tensor) -> list[Tensor]:
        return self._signature.call(self.model, tensors)


def _signature(
    model: nn.Module, example: Any, batch: int | None, open_axes: Mapping[str, Mapping[int, str]]
) -> Signature:
    args: tuple[Any, ...] = example if isinstance(example, tuple) else (example,)
    kwargs: dict[str, Any] = {}
    if isinstance(example, Mapping):
        args, kwargs = (), dict(example)
    size = batch
    if any("batch" in names.values() for names in open_axes.values()):
        size = batch_size_of(list(tensors_in((args, kwargs))))  # the axis that is varied may be another one
    try:
        return signature_of(model, *args, batch_sizes=None if size is None else (size,), **kwargs)
    except ShapeError as error:
        if error.hint is not None:
            error.hint = re.sub(
                r"If .*: batch_sizes=\((\d+),\)", r"Or fix it here, too: batch=\1", error.hint
            )
        raise


def _named_as_imported(model: nn.Module, signature: Signature) -> Signature:
    """Give the inputs and outputs of an imported model the names that they have in its file."""
    if not isinstance(model, ImportedModule):
        return signature

    of_argument = dict(zip(model.program.inputs, model.input_names, strict=True))
    inputs = [*model.input_names[: len(signature.args)]]  # the others are keywords, in any order
    inputs += [of_argument.get(info.name, info.name) for info in signature.inputs[len(inputs) :]]

    def named(infos: tuple[TensorInfo, ...], names: list[str]) -> tuple[TensorInfo, ...]:
        if len(set(names)) != len(infos) or not all(names):
            return infos
        return tuple(replace(info, name=name) for info, name in zip(infos, names, strict=True))

    return replace(
        signature,
        inputs=named(signature.inputs, inputs),
        outputs=named(signature.outputs, model.output_names),
    )


def _with_batch(signature: Signature, batch: int) -> Signature:
    """Return a signature whose batch axis has a fixed size, as any other axis."""
    inputs, outputs = (
        tuple(replace(info, shape=info.shape_for(batch), batch_axis=None) for info in infos)
        for infos in (signature.inputs, signature.outputs)
    )
    return replace(signature, inputs=inputs, outputs=outputs)


def _copy_for_export(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return the module on the CPU with rounded weights; the module itself if it needs no change."""
    tensors = [*model.parameters(), *model.buffers()]
    if dtype == torch.float32 and all(tensor.device.type == "cpu" for tensor in tensors):
        return model
    return (copy.deepcopy(model) if dtype == torch.float32 else rounded_copy(model, dtype)).cpu()


def _translate(
    model: nn.Module, signature: Signature, axes: Sequence[Mapping[int, str]], opset: int, optimize: bool
) -> tuple[Any, dict[str, Limit]]:
    """Return the model as an `onnx_ir.Model`, and the limits of its open axes.

    Without `optimize` no weights are computed anew, such as those of a convolution with a norm folded in.
    """
    name = type(model).__name__
    with _quiet(), torch.no_grad():
        program, limits = _traced(model, signature, axes)
        program = _decomposed(program, opset)
        changed = [
            buffer.removeprefix("model.") for buffer in program.graph_signature.buffers_to_mutate.values()
        ]
        if changed:
            raise UnsupportedError(
                f"{name} changes its buffers in evaluation mode, which a file cannot",
                found=", ".join(changed),
                hint="do so only `if self.training`",
            )
        try:
            translated = torch.onnx.export(
                program,
                dynamo=True,
                opset_version=opset,
                dynamic_shapes=(tuple(dict(names) or None for names in axes),),  # the names of the axes
                optimize=optimize,
                verbose=False,
            )
        except torch.onnx.OnnxExporterError as error:
            missing = missing_onnx_ops(program, opset)
            raise UnsupportedError(
                f"{name} uses ops that ONNX has no translation for"
                if missing
                else f"{name} cannot be translated to ONNX",
                found=", ".join(missing) or first_line(error),
                hint="write these with other ops of torch" if missing else None,
            ) from error
    assert translated is not None
    if not optimize:
        _fold_constants(translated.model)
    store_packed_weights(translated.model)
    quantize_in_shape(translated.model)
    expand_masks(translated.model)
    _rename(translated.model, signature)
    _drop_source_lines(translated.model)
    return translated.model, limits


def _traced(
    model: nn.Module, signature: Signature, axes: Sequence[Mapping[int, str]]
) -> tuple[torch.export.ExportedProgram, dict[str, Limit]]:
    """Return torch's graph of a model, and the limits of its open axes."""
    batches = [info.shape[info.batch_axis] for info in signature.inputs if info.batch_axis is not None]
    # Sizes 0 and 1 would be taken for constants.
    example = signature.example(max([2, *batches]))
    dims = {symbol: torch.export.Dim(symbol) for names in axes for symbol in names.values()}
    limits: dict[str, Limit] = {}
    while True:
        shapes = tuple({axis: dims[symbol] for axis, symbol in names.items()} or None for names in axes)
        try:
            program = torch.export.export(
                _Flat(model, signature), tuple(example), dynamic_shapes=(shapes,), strict=False
            )
        except UnsupportedError:  # from the model's own code, such as functions of an imported one
            raise
        except Exception as error:  # the model's code may raise anything when it is traced
            found = None if limits else limits_in(str(error), model)
            if found is None:
                raise _tracing_error(model, error) from error
            limits = found
            for symbol, limit in limits.items():
                dims[symbol] = torch.export.Dim(symbol, min=limit.smallest, max=limit.largest)
        else:
            return program, limits


def _fold_constants(model: Any) -> None:
    """Do what the exporter's optimization does, but for computing weights anew."""
    from onnx_ir.passes import common
    from onnxscript import optimizer

    optimizer.fold_constants(model)
    common.LiftConstantsToInitializersPass(lift_all_constants=False, size_limit=0)(model)
    optimizer.remove_unused_nodes(model)


def _decomposed(program: torch.export.ExportedProgram, opset: int) -> torch.export.ExportedProgram:
    """Replace burnt's ops by ONNX's or by their references, an op that torch.onnx translates wrongly, and
    in-place ops."""
    targets = {node.target for node in program.graph.nodes}
    signed = not reads_only_quantized(program.graph)
    known = {**decompositions(), **translations(opset, signed)}
    table = {op: function for op, function in known.items() if op in targets}
    cross_entropy = torch.ops.aten.cross_entropy_loss.default
    if cross_entropy in targets:  # the translation ignores label_smoothing
        table[cross_entropy] = torch.export.default_decompositions()[cross_entropy]
    if table or any(map(writes_to_argument, targets)):
        program = program.run_decompositions(table)
    return program


def _rename(model: Any, signature: Signature) -> None:
    """Give inputs and outputs the names of the signature, and weights those that they have in the module."""
    from onnx_ir.passes.common import NameFixPass

    graph = model.graph
    for value in list(graph.initializers.values()):
        name = value.name.removeprefix("model.")
        if name not in graph.initializers:
            value.name = name
    taken = {info.name for info in (*signature.inputs, *signature.outputs)}
    for value in [value for name, value in graph.initializers.items() if name in taken]:
        value.name = (
            f"{value.name}.weight"  # of a folded op, such as `t`; NameFixPass renames no initializers
        )
    for values, infos in ((graph.inputs, signature.inputs), (graph.outputs, signature.outputs)):
        for value, info in zip(values, infos, strict=True):
            value.name = info.name
    NameFixPass()(model)  # renames what else has these names: `add` is an input, or the result of an Add


def _drop_source_lines(model: Any) -> None:
    """Keep of each node's metadata the path of its module: the rest has files and lines of this machine."""
    import onnx_ir as ir

    for graph in (model.graph, *model.functions.values()):
        for node in ir.traversal.RecursiveGraphIterator(graph):
            for key in set(node.metadata_props) - {"namespace", "pkg.torch.onnx.name_scopes"}:
                del node.metadata_props[key]


def _with_batch_axes_of_outputs(signature: Signature, model: Any) -> Signature:
    """Return a signature with the batch axes of outputs as the translation has found them."""
    outputs = []
    for value, info in zip(model.graph.outputs, signature.outputs, strict=True):
        axes = [axis for axis, size in enumerate(value.shape) if getattr(size, "value", None) == "batch"]
        outputs.append(replace(info, batch_axis=axes[0] if len(axes) == 1 else None))
    return replace(signature, outputs=tuple(outputs))


def _metadata(
    signature: Signature, limits: Mapping[str, Limit], given: Mapping[str, str] | None
) -> dict[str, str]:
    largest = {name: limit.largest for name, limit in limits.items() if limit.largest is not None}
    return {
        "burnt.version": __version__,
        "torch.version": torch.__version__,
        "burnt.signature": json.dumps(signature.to_dict()),
        **({"burnt.limits": json.dumps(largest)} if largest else {}),
        **(given or {}),
    }


def _save(model: Any, path: Path) -> None:
    import onnx_ir as ir

    size = sum(value.const_value.nbytes for value in model.graph.initializers.values())
    if size > _MAX_BYTES:
        raise UnsupportedError(
            "the weights do not fit into an ONNX file",
            expected=f"at most {_MAX_BYTES:,} bytes",
            found=f"{size:,} bytes",
            hint="weights='float16' or weights='bfloat16' halves them",
        )
    ir.save(model, path)


def _tracing_error(model: nn.Module, error: Exception) -> BurntError:
    if "Constraints violated" in str(error):
        return fixed_axis_error(model, str(error))
    return UnsupportedError(
        f"{type(model).__name__} cannot be traced",
        where=_user_line(error),
        found=first_line(error),
        hint="its code may depend on values: torch.where(c, a, b) instead of `if c`",
    )


def _user_line(error: Exception) -> str | None:
    """Return the innermost line in an error's traceback that is neither torch's nor burnt's."""
    libraries = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((*libraries, "<"))
    ]
    return f"{frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}" if frames else None


def _require_schemes(model: nn.Module, opset: int | None) -> None:
    """Check that ONNX Runtime computes with the schemes of quantized layers."""
    for name, layer in model.named_modules():
        scheme = layer.scheme if isinstance(layer, Quantized) else None
        if scheme is None or not scheme.type.is_float:
            continue
        if scheme.value not in FLOAT8 or scheme.activations:
            raise UnsupportedError(
                "a quantization scheme cannot be exported to ONNX",
                where=name,
                expected="int8, int4, int2, or float8 without quantized inputs",
                found=scheme.name,
            )
        if opset is not None and opset < _first_opset(scheme):
            raise UnsupportedError(
                f"the scheme {scheme.name} cannot be exported in this opset",
                where=name,
                expected=f"at least {_first_opset(scheme)}",
                found=opset,
            )


def _first_opset(scheme: QuantScheme) -> int:
    """Return the first opset with the types of a scheme; older ones store integers in 8 bits."""
    if scheme.type.bits < 8 or (scheme.type.is_float and scheme.block):
        return OPSET_4_BITS
    return OPSET_FLOAT8 if scheme.type.is_float else OPSETS[0]


def _require_packages() -> None:
    packages = ("onnx", "onnxscript", "onnxruntime")
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise UnsupportedError(
            "exporting to ONNX needs further packages",
            expected="onnx, onnxscript and onnxruntime",
            found=f"no {', no '.join(missing)}",
            hint="pip install 'burnt[onnx]'",
        )


def _require_tensors(signature: Signature) -> None:
    if not signature.inputs or not signature.outputs:
        raise UnsupportedError(
            "the model takes or returns no tensors", found=f"the signature {signature}".rstrip()
        )
    for info in (*signature.inputs, *signature.outputs):
        if info.dtype not in _DTYPES:
            raise UnsupportedError(
                "ONNX Runtime takes no tensors of this dtype from Python",
                where=info.name,
                found=info.dtype,
                hint="export model.float() with weights='bfloat16'" if info.dtype == "bfloat16" else None,
            )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Context without what torch's exporter prints, logs and warns of, which is about its own parts."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
