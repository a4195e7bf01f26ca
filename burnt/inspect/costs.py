"""summary: a table of a model's layers with output shapes, parameters, FLOPs and activation bytes."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import nn

from burnt._text import bytes_text, scaled_text, table_lines
from burnt.errors import ArgumentError, ShapeError
from burnt.inspect.call_trace import CallTrace, first_line
from burnt.inspect.crossings import Crossing
from burnt.inspect.layers import describe
from burnt.inspect.meta import MetaModel, meta_context, meta_inputs, run_isolated
from burnt.inspect.specs import shapes_text, tensors_in


@dataclass(frozen=True)
class Row:
    """One module of a model.

    Args:
        path: its path, empty for the model itself.
        layer: its description, such as ``Linear(128 -> 64)``.
        output: the shapes of its last output; None if it was not called.
        parameters: the number of elements of its own parameters and quantized weight, without its
            submodules'; shared ones count only where they occur first.
        flops: floating-point operations of its calls, including its submodules'; a multiplication
            and an addition are two.
        activation_bytes: bytes of its outputs, for modules that call no others; else 0.
        calls: the number of its calls.
    """

    path: str
    layer: str
    output: str | None
    parameters: int
    flops: int
    activation_bytes: int
    calls: int


@dataclass(frozen=True)
class Summary:
    """The layers of a model and their costs; ``str()`` of it is a table.

    Args:
        rows: one per module, the model itself first.
        trainable: elements of parameters that require a gradient.
        frozen: elements of the others, and of quantized weights.
        parameter_bytes: memory of all parameters, and of quantized weights with their scales.
        flops: floating-point operations of one forward call.
        activation_bytes: bytes of the outputs of all modules that call no others, in one forward call.
        unchecked: why the run ended early, if it did; the rows then lack what follows.
        crossings: what a model in parts (`burnt.place`) copies between devices, without gradients.
    """

    rows: tuple[Row, ...]
    trainable: int
    frozen: int
    parameter_bytes: int
    flops: int
    activation_bytes: int
    unchecked: tuple[str, ...] = ()
    crossings: tuple[Crossing, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the summary as dictionaries, lists, strings and numbers, for JSON."""
        lists = ("rows", "unchecked", "crossings")
        return {name: list(value) if name in lists else value for name, value in asdict(self).items()}

    def __str__(self) -> str:
        cells = [("layer", "output", "parameters", "FLOPs", "activations")]
        for row in self.rows:
            depth = row.path.count(".") + 1 if row.path else 0
            name = f"{row.path.rpartition('.')[2]}  " if row.path else ""
            cells.append(
                (
                    f"{'  ' * depth}{name}{row.layer}",
                    (row.output or "not called") + (f"  x{row.calls}" if row.calls > 1 else ""),
                    f"{row.parameters:,}" if row.parameters else "",
                    _count(row.flops) if row.flops else "",
                    bytes_text(row.activation_bytes) if row.activation_bytes else "",
                )
            )
        lines = table_lines(cells, right=range(2, 5))
        lines.insert(1, "-" * len(lines[0]))
        total = self.trainable + self.frozen
        lines += [
            lines[1],
            f"parameters   {total:,} ({bytes_text(self.parameter_bytes)}): "
            f"{self.trainable:,} trainable, {self.frozen:,} frozen",
            f"forward      {_count(self.flops, 'FLOP')}, activations {bytes_text(self.activation_bytes)}",
        ]
        lines += [f"crossing     {entry}" for entry in self.crossings]
        lines += [f"unchecked    {entry}" for entry in self.unchecked]
        return "\n".join(lines)


def summary(model: nn.Module, *inputs: Any, **kwargs: Any) -> Summary:
    """Tabulate output shapes and costs of each layer, from one forward call on meta tensors.

    Nothing is computed and the model is not changed, as in `burnt.inspect.check`.

    Args:
        model: any module, in the training mode to look at.
        inputs: the model's inputs: tensors, TensorSpecs, and containers of these.
        kwargs: keyword arguments of the call.

    Raises:
        ShapeError: a shape does not fit.
        ArgumentError: a module gets arguments that its ``forward`` does not take.

    FLOPs are counted by torch's formulas (`torch.utils.flop_counter`): matrix products, convolutions and
    attention; elementwise work is not counted. A mixture of experts counts what runs, not all experts.

    >>> model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10, bias=False))
    >>> print(summary(model, torch.empty(32, 128)))
    layer                   output    parameters   FLOPs  activations
    -----------------------------------------------------------------
    Sequential              (32, 10)               565 k
      0  Linear(128 -> 64)  (32, 64)       8,256   524 k        8 KiB
      1  ReLU               (32, 64)                            8 KiB
      2  Linear(64 -> 10)   (32, 10)         640  41.0 k     1.25 KiB
    -----------------------------------------------------------------
    parameters   8,896 (34.8 KiB): 8,896 trainable, 0 frozen
    forward      565 kFLOP, activations 17.2 KiB
    """
    # Imported here: the counter's registry takes longer to load than most summaries to make.
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False, custom_mapping=_formulas())
    return run_isolated(lambda: _summarize(model, inputs, kwargs, counter))


def _summarize(model: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any], counter: Any) -> Summary:
    unchecked: tuple[str, ...] = ()
    with meta_context(), torch.no_grad():
        meta_model = MetaModel(model, _Costs)
        costs = meta_model.trace
        assert isinstance(costs, _Costs)
        args, named = meta_inputs((inputs, kwargs))
        with counter:
            costs.counter = counter
            try:
                meta_model.run(None, args, named)
            except (ArgumentError, ShapeError):
                raise
            except Exception as error:
                # A model may fail without values in any way; what was seen until then is still worth showing.
                module, line = costs.locate(error)
                at = f" ({line})" if line else ""
                place = costs.path_of(module, None)
                unchecked = (f"{place}: {type(error).__name__}: {first_line(error)}{at}",)
        quantized = _quantized_weights(meta_model.model)
        rows = _rows(meta_model.model, costs, quantized)
        flops = counter.get_total_flops()
    return Summary(
        rows=rows,
        trainable=sum(p.numel() for p in meta_model.parameters.values() if p.requires_grad),
        frozen=sum(p.numel() for p in meta_model.parameters.values() if not p.requires_grad)
        + sum(elements for elements, _ in quantized.values()),
        parameter_bytes=sum(p.nbytes for p in meta_model.parameters.values())
        + sum(nbytes for _, nbytes in quantized.values()),
        flops=flops,
        activation_bytes=sum(row.activation_bytes for row in rows),
        unchecked=unchecked,
        crossings=tuple(meta_model.crossings.found.values()),
    )


def _formulas() -> dict[Any, Any]:
    """Return the FLOPs of the ops of burnt that torch's formulas lack, if `burnt.kernels` is loaded."""

    def grouped_matmul(a: torch.Size, b: torch.Size, ends: torch.Size, **rest: Any) -> int:
        return 2 * a[0] * a[1] * b[2]

    def recurrent(
        x: torch.Size, weight_ih: torch.Size, weight_hh: torch.Size, *args: Any, **rest: Any
    ) -> int:
        return 2 * x[0] * x[1] * weight_ih[0] * (weight_ih[1] + weight_hh[1])

    def quantized_linear(x: torch.Size, values: torch.Size, *args: Any, **rest: Any) -> int:
        return 2 * x.numel() * values[0]

    def scaled_conv(x: torch.Size, values: torch.Size, *args: Any, out_shape: Any, **rest: Any) -> int:
        products: int = math.prod(out_shape) * math.prod(values[1:])
        return 2 * products

    formulas = {
        "grouped_matmul": grouped_matmul,
        "lstm_layer": recurrent,
        "gru_layer": recurrent,
        "quantized_linear": quantized_linear,
        "scaled_linear": quantized_linear,
        "scaled_conv": scaled_conv,
    }
    ops = {getattr(torch.ops.burnt, name, None): formula for name, formula in formulas.items()}
    return {op: formula for op, formula in ops.items() if op is not None}


@dataclass
class _Cost:
    """Accumulated costs of one module's calls."""

    output: str | None = None
    flops: int = 0
    activation_bytes: int = 0
    calls: int = 0


@dataclass
class _OpenCall:
    """A call of a module that has not returned."""

    module: nn.Module
    flops_before: int
    called_others: bool = field(default=False)


class _Costs(CallTrace):
    """A trace that also accumulates each module's costs."""

    counter: Any

    def clear(self) -> None:
        super().clear()
        self.costs: dict[int, _Cost] = {}
        self.open: list[_OpenCall] = []

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.open:
            self.open[-1].called_others = True
        self.open.append(_OpenCall(module, self.counter.get_total_flops()))
        super().enter(module, args, kwargs)

    def leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        super().leave(module, args, kwargs, output)
        call = self.open.pop()
        while call.module is not module:  # a call that failed with an exception that the model caught
            call = self.open.pop()
        cost = self.costs.setdefault(id(module), _Cost())
        cost.calls += 1
        cost.output = shapes_text(output)
        cost.flops += self.counter.get_total_flops() - call.flops_before
        if not call.called_others:
            cost.activation_bytes += sum(t.numel() * t.element_size() for t in tensors_in(output))


def _quantized_weights(model: nn.Module) -> dict[nn.Module, tuple[int, int]]:
    """Return the layers with quantized weights -> elements of the weight, and the bytes that stand for it.

    They are `burnt.nn.quantized.Quantized`, which this package may not import. Tied weights count once.
    """
    found: dict[nn.Module, tuple[int, int]] = {}
    seen: set[int] = set()
    for module in model.modules():
        shape, values = getattr(module, "weight_shape", None), module._buffers.get("values")
        if shape is None or values is None:
            continue
        own = [b for b in module._buffers.values() if b is not None and id(b) not in seen]
        elements = math.prod(shape) if id(values) not in seen else 0
        seen.update(map(id, own))
        found[module] = elements, sum(b.nbytes for b in own)
    return found


def _rows(model: nn.Module, costs: _Costs, quantized: dict[nn.Module, tuple[int, int]]) -> tuple[Row, ...]:
    rows: list[Row] = []
    seen: set[int] = set()
    for path, module in model.named_modules():
        own = [p for p in module.parameters(recurse=False) if id(p) not in seen]
        seen.update(map(id, own))
        cost = costs.costs.get(id(module), _Cost())
        rows.append(
            Row(
                path=path,
                layer=describe(module),
                output=cost.output,
                parameters=sum(p.numel() for p in own) + quantized.get(module, (0, 0))[0],
                flops=cost.flops,
                activation_bytes=cost.activation_bytes,
                calls=cost.calls,
            )
        )
    return tuple(rows)


def _count(number: int, unit: str = "") -> str:
    return scaled_text(number, 1000, tuple(prefix + unit for prefix in ("", "k", "M", "G", "T", "P")))
