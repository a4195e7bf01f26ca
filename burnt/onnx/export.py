"""export: write a module as an ONNX file, and compare the file with the module in ONNX Runtime.

torch's exporter does the translation. burnt adds what it leaves to the user: its own ops are replaced by
their references, the batch axis stays open, nested arguments become named inputs, ops without a translation
are all named at once, and the written file is run beside the module before the call returns.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from burnt._files import replacing
from burnt._torch import missing_onnx_ops
from burnt._version import __version__
from burnt.errors import BurntError, InputRuntimeError, InputValueError, UnsupportedError
from burnt.inspect.signature import Signature, signature_of
from burnt.kernels import decompositions
from burnt.onnx.weights import rounded_copy, store_in_16_bits

__all__ = ["Exported", "export"]

OPSET = 20
"""The version of ONNX's operators that is written: the newest that all the runtimes in docs/ship.md read."""

_WEIGHTS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_BATCHES = (1, 3)  # the numbers of items with which the file is compared


@dataclass(frozen=True)
class Exported:
    """The result of `export`.

    Args:
        path: the file.
        size: its bytes.
        signature: what the model takes and returns; the file's inputs and outputs have these names.
        errors: the largest difference between the file in ONNX Runtime and the module, by the number of
            items: relative to the largest output, but absolute where that is below 1.
    """

    path: Path
    size: int
    signature: Signature
    errors: Mapping[int, float] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{self.path}, {self.size:,} bytes", f"  {self.signature}"]
        lines += [f"  batch {batch}: largest error {error:.1e}" for batch, error in self.errors.items()]
        return "\n".join(lines)


def export(
    model: nn.Module,
    example: Any,
    path: str | os.PathLike[str],
    *,
    batch: int | None = None,
    weights: str = "float32",
    fold: bool = True,
    metadata: Mapping[str, str] | None = None,
    tolerance: float = 1e-4,
) -> Exported:
    """Write a module as an ONNX file, in evaluation mode.

    Args:
        model: any module; it is not changed.
        example: its inputs: a tensor, a tuple of arguments, a dict of keyword arguments, or a `Signature`.
        path: the file to write; an older one is replaced once the new one is complete.
        batch: a fixed number of items; by default the batch axis is open.
        weights: ``"float32"``, or ``"float16"`` or ``"bfloat16"`` for matrices stored in 16 bits. The
            computation stays in float32, with the rounded weights.
        fold: compute weights anew where that saves work, as for a convolution with a norm after it; never
            those in 16 bits.
        metadata: texts to store in the file, beside the versions of burnt and torch and the signature.
        tolerance: the largest difference from the module that is accepted, relative to the largest output.

    Returns:
        What was written, and how far the file's outputs are from the module's.

    Raises:
        UnsupportedError: a package is missing, the module cannot be traced, or ops have no translation.
        InputRuntimeError: the batch axis cannot stay open, or the file computes something else.
        InputValueError: `weights` is unknown, or a weight does not fit the dtype.

    >>> import tempfile, burnt.onnx
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     exported = export(nn.Linear(3, 2), torch.zeros(4, 3), f"{folder}/linear.onnx")
    >>> print(exported.signature)
    input: float32[batch, 3] -> output: float32[batch, 2]
    """
    _require_packages()
    if weights not in _WEIGHTS:
        raise InputValueError(
            "weights= is invalid", expected=" or ".join(map(repr, _WEIGHTS)), found=repr(weights)
        )
    signature = example if isinstance(example, Signature) else _signature(model, example)
    with _in_evaluation_mode(model):
        dtype = _WEIGHTS[weights]
        shown = model if dtype == torch.float32 else rounded_copy(model, dtype)
        written = _translate(shown, signature, batch, optimize=fold and dtype == torch.float32)
        if dtype != torch.float32:
            store_in_16_bits(written, dtype)
        written.metadata_props.update(_metadata(signature, metadata))
        written.graph.name = type(model).__name__
        target = Path(path)
        with replacing(target) as temporary:
            _save(written, temporary)
            errors = _compare(temporary, shown, signature, _BATCHES if batch is None else (batch,), tolerance)
    return Exported(target, target.stat().st_size, signature, errors)


class _Flat(nn.Module):
    """A module with flat lists of tensors as arguments and results."""

    def __init__(self, model: nn.Module, signature: Signature) -> None:
        super().__init__()
        self.model = model
        self._signature = signature

    def forward(self, *tensors: Tensor) -> list[Tensor]:
        return self._signature.call(self.model, tensors)


def _signature(model: nn.Module, example: Any) -> Signature:
    with _in_evaluation_mode(model):
        if isinstance(example, Mapping):
            return signature_of(model, **example)
        return signature_of(model, *(example if isinstance(example, tuple) else (example,)))


def _translate(model: nn.Module, signature: Signature, batch: int | None, optimize: bool) -> Any:
    """Return the model as an `onnx_ir.Model`.

    Without `optimize` no weights are computed anew, such as those of a convolution with a norm folded in.
    """
    # Sizes 0 and 1 would be taken for constants.
    example = signature.example(max(signature_batch(signature) or 2, 2) if batch is None else batch)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    example = [tensor.to(device) for tensor in example]
    open_axis = torch.export.Dim("batch")
    shapes = tuple(
        {info.batch_axis: open_axis} if batch is None and info.batch_axis is not None else None
        for info in signature.inputs
    )
    flat = _Flat(model, signature)
    with _quiet(), torch.no_grad():
        try:
            program = torch.export.export(flat, tuple(example), dynamic_shapes=(shapes,), strict=False)
        except Exception as error:  # the model's code may raise anything when it is traced
            raise _untraceable_error(model, error, batch) from error
        program = program.run_decompositions(decompositions())
        missing = missing_onnx_ops(program)
        if missing:
            raise UnsupportedError(
                f"{type(model).__name__} uses ops that ONNX has no translation for",
                expected="ops that torch.onnx translates",
                found=", ".join(missing),
                hint="write these with other ops of torch",
            )
        try:
            translated = torch.onnx.export(
                program,
                dynamo=True,
                opset_version=OPSET,
                input_names=[info.name for info in signature.inputs],
                output_names=[info.name for info in signature.outputs],
                optimize=optimize,
                verbose=False,
            )
        except torch.onnx.OnnxExporterError as error:
            raise UnsupportedError(
                f"{type(model).__name__} cannot be translated to ONNX", found=_reason(error)
            ) from error
    assert translated is not None
    if not optimize:
        _fold_constants(translated.model)
    return _named(translated.model, signature)


def _fold_constants(model: Any) -> None:
    """Do what the exporter's optimization does, but for computing weights anew."""
    from onnx_ir.passes import common
    from onnxscript import optimizer

    optimizer.fold_constants(model)
    common.LiftConstantsToInitializersPass(lift_all_constants=False, size_limit=0)(model)
    optimizer.remove_unused_nodes(model)


def signature_batch(signature: Signature) -> int | None:
    """Return the number of items in the example of a signature; None if no input has a batch axis."""
    sizes = (info.shape[info.batch_axis] for info in signature.inputs if info.batch_axis is not None)
    return next(sizes, None)


def _named(model: Any, signature: Signature) -> Any:
    """Give the weights the module's own names, and the open axis its name."""
    import onnx_ir as ir

    for name, value in list(model.graph.initializers.items()):
        if name.startswith("model."):
            model.graph.initializers.pop(name)
            value.name = name.removeprefix("model.")
            model.graph.register_initializer(value)
    for values, infos in ((model.graph.inputs, signature.inputs), (model.graph.outputs, signature.outputs)):
        for value, info in zip(values, infos, strict=True):
            dims = list(value.shape)
            if info.batch_axis is not None and not isinstance(dims[info.batch_axis], int):
                dims[info.batch_axis] = ir.SymbolicDim("batch")
                value.shape = ir.Shape(dims)
    return model


def _metadata(signature: Signature, given: Mapping[str, str] | None) -> dict[str, str]:
    return {
        "burnt.version": __version__,
        "torch.version": torch.__version__,
        "burnt.signature": json.dumps(signature.to_dict()),
        **(given or {}),
    }


def _save(model: Any, path: Path) -> None:
    import onnx_ir as ir

    ir.save(model, path)


def _compare(
    path: Path, model: nn.Module, signature: Signature, batches: Sequence[int], tolerance: float
) -> dict[int, float]:
    """Run the file beside the module; return the largest error by batch.

    Raises:
        InputRuntimeError: ONNX Runtime refuses the file, or its outputs differ by more than the tolerance.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions have no common base but Exception
        raise InputRuntimeError("ONNX Runtime refuses the file", found=_reason(error)) from error
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    errors = {}
    for batch in batches:
        inputs = signature.example(batch, seed=batch)
        with torch.no_grad():
            expected = signature.call(model, [tensor.to(device) for tensor in inputs])
        fed = {info.name: tensor.numpy() for info, tensor in zip(signature.inputs, inputs, strict=True)}
        known = {value.name for value in session.get_inputs()}  # an input that is not used is left out
        found = session.run(None, {name: array for name, array in fed.items() if name in known})
        errors[batch] = max(
            (_error(torch.from_numpy(a), b.cpu()) for a, b in zip(found, expected, strict=True)), default=0.0
        )
        if not errors[batch] <= tolerance:
            raise InputRuntimeError(
                "the file computes something else than the module",
                where=f"{type(model).__name__}, batch {batch}",
                expected=f"a largest error of {tolerance:g}",
                found=f"{errors[batch]:.3g}",
                hint="random numbers, or code that depends on values, are fixed when a model is traced",
            )
    return errors


def _error(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference, relative to the largest value or 1; infinity where NaNs differ."""
    if found.shape != expected.shape:
        return float("inf")
    found, expected = found.double(), expected.double()
    if not torch.equal(found.isnan(), expected.isnan()) or not torch.equal(found.isinf(), expected.isinf()):
        return float("inf")
    finite = expected.isfinite()
    if not bool(finite.any()):
        return 0.0
    difference = (found - expected)[finite].abs().max()
    return float(difference / expected[finite].abs().max().clamp(min=1.0))


def _untraceable_error(model: nn.Module, error: Exception, batch: int | None) -> BurntError:
    name, text = type(model).__name__, _reason(error)
    if batch is None and ("batch" in text and ("specialized" in text or "onstraint" in text)):
        return InputRuntimeError(
            f"the batch axis of {name} cannot stay open",
            found=text,
            hint="a size of the batch is fixed in its code (use -1 or x.shape[0]); or fix it here: batch=1",
        )
    return UnsupportedError(
        f"{name} cannot be traced",
        found=text,
        hint="its code may depend on values: torch.where(c, a, b) instead of `if c`",
    )


def _reason(error: BaseException) -> str:
    """Return the first lines of an error's message, without torch's advice for its developers."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: " + " ".join(lines[:3])[:400]


def _require_packages() -> None:
    missing = [
        name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None
    ]
    if missing:
        raise UnsupportedError(
            "exporting to ONNX needs further packages",
            expected="onnx, onnxscript and onnxruntime",
            found=f"no {', no '.join(missing)}",
            hint="pip install burnt[onnx]",
        )


@contextlib.contextmanager
def _in_evaluation_mode(model: nn.Module) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Context without the warnings and logs of torch's exporter, which are about its own parts."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
