"""Backend: burnt behind ONNX's own interface for running models, ``onnx.backend.base.Backend``.

``prepare(model).run(inputs)`` imports the model as `burnt.onnx.load` does and converts numpy arrays on the
way in and out. ONNX's conformance tests, and other programs that take a backend, run through it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from onnx.backend.base import Backend, BackendRep

from burnt.errors import ShapeError
from burnt.onnx.importer.dtypes import from_numpy, to_numpy
from burnt.onnx.importer.load import load
from burnt.onnx.importer.module import ImportedModule


class PreparedModel(BackendRep):
    """An imported model that takes and returns numpy arrays.

    Args:
        module: the imported model.
        types: the types of its outputs, as ``onnx.TypeProto``.
        device: the device that it computes on.
    """

    def __init__(self, module: ImportedModule, types: Sequence[Any], device: torch.device) -> None:
        self.module = module.to(device)
        self.types = types
        self.device = device

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Compute the outputs.

        Args:
            inputs: a numpy array per input in the order of the graph, or a mapping by name. Also ml_dtypes'
                types, arrays of strings, lists (sequences) and None (an
                empty optional).
            **kwargs: no further argument is known.

        Returns:
            The outputs in the order of the graph: arrays, lists of arrays, or None.

        Raises:
            ShapeError: the number of inputs is not the graph's.
        """
        names = self.module.input_names
        if isinstance(inputs, Mapping):
            inputs = [inputs[name] for name in names]
        elif isinstance(inputs, np.ndarray):
            inputs = [inputs]
        if len(inputs) != len(names):
            raise ShapeError(
                "the number of inputs is not the model's",
                expected=f"{len(names)} inputs: {', '.join(names)}",
                found=f"{len(inputs)} inputs",
            )
        with torch.inference_mode():
            outputs = self.module(*[from_numpy(value, self.device) for value in inputs])
        if len(self.types) == 1:
            outputs = (outputs,)
        return tuple(to_numpy(value, kind) for value, kind in zip(outputs, self.types, strict=True))


class BurntBackend(Backend):
    """ONNX's backend interface; its functions are also functions of this module."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> PreparedModel:
        """Import a model.

        Args:
            model: an ``onnx.ModelProto``.
            device: ``CPU``, ``CUDA`` or ``CUDA:1``.
            **kwargs: no further argument is known.

        Raises:
            RecordError: the model is damaged.
            UnsupportedError: it has ops that burnt does not support.

        Example:
            >>> import numpy as np, onnx.parser, burnt.onnx.backend
            >>> model = onnx.parser.parse_model('''
            ...     <ir_version: 10, opset_import: ["": 21]>
            ...     double (float[n] x) => (float[n] y) { y = Add(x, x) }
            ... ''')
            >>> burnt.onnx.backend.prepare(model).run([np.array([1.0, 2.0], np.float32)])
            (array([2., 4.], dtype=float32),)
        """
        module = load(model)
        return PreparedModel(module, [value.type for value in model.graph.output], _device(device))

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> Any:
        """Import a model and compute its outputs."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Compute the outputs of a single node.

        Args:
            node: an ``onnx.NodeProto``.
            inputs: a numpy array per input of the node, less those it leaves empty.
            device: the device to compute on, as in `prepare`.
            outputs_info: dtype and shape of each output, where they are known; not needed.
            **kwargs: ``opset_version``, by default the newest that onnx knows.
        """
        version = int(kwargs.get("opset_version", onnx.defs.onnx_opset_version()))
        names = [name for name in node.input if name]
        values = [np.asarray(value) for value in inputs]
        graph = onnx.helper.make_graph(
            [node],
            "node",
            [
                onnx.helper.make_tensor_value_info(
                    name, onnx.helper.np_dtype_to_tensor_dtype(v.dtype), v.shape
                )
                for name, v in zip(names, values, strict=True)
            ],
            [onnx.ValueInfoProto(name=name) for name in node.output if name],
        )
        opsets = [onnx.helper.make_opsetid(node.domain, version)]
        model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=onnx.IR_VERSION)
        return cls.run_model(onnx.shape_inference.infer_shapes(model), values, device)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether this machine has a device: ``CPU``, ``CUDA`` or ``CUDA:1``."""
        kind = _device(device)
        return kind.type == "cpu" or (kind.type == "cuda" and (kind.index or 0) < torch.cuda.device_count())


def _device(name: str) -> torch.device:
    return torch.device(name.lower())


prepare = BurntBackend.prepare
run_model = BurntBackend.run_model
run_node = BurntBackend.run_node
supports_device = BurntBackend.supports_device
