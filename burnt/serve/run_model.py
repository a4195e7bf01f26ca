"""RunModel: a torch module, such as the model of a run, as the server runs it. Imports torch."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from burnt._independence import tolerance_for
from burnt.data.description import TableDescription
from burnt.inspect.signature import Signature, signature_of
from burnt.module import restore_fields
from burnt.record import Record, load_into
from burnt.serve.schema import Arrays, Schema
from burnt.serve.servable import padded_sizes
from burnt.train.after.loading import RunFiles
from burnt.train.checkpoints.checkpoint import model_file
from burnt.train.placement import device_of


class RunModel:
    """A module that the server runs in evaluation mode.

    Args:
        module: the model.
        example: its inputs, or their `Signature`.
        classes: the names of the classes, if it has any.
        folder: the run folder, from which new checkpoints are loaded.
        checkpoint: the name of the checkpoint that was loaded.
        wanted: which checkpoint is served: `reloaded` loads it again.
        table: what encodes rows; its entries are the inputs.
        is_multi_label: whether an item may have several of the classes.
    """

    def __init__(
        self,
        module: nn.Module,
        example: Any,
        classes: Sequence[str] | None = None,
        folder: Path | None = None,
        checkpoint: str = "",
        wanted: str = "best",
        table: TableDescription | None = None,
        is_multi_label: bool = False,
    ) -> None:
        self.module = module.eval()
        self.signature = example if isinstance(example, Signature) else signature_of(module, example)
        self.folder = folder
        self.version = checkpoint
        schema = Schema.from_signature(self.signature.to_dict(), classes, is_multi_label)
        dtypes = {info.dtype for info in (*self.signature.inputs, *self.signature.outputs)}
        for parameter in module.parameters():
            dtypes |= {str(parameter.dtype).removeprefix("torch."), "tf32" if parameter.is_cuda else ""}
        self._wanted = wanted
        self._classes = classes
        self._device = device_of(module)
        # On a GPU an index beyond a table ends all use of it by the process.
        largest = schema.largest_integer if self._device.type == "cpu" else 1
        self.schema = replace(schema, tolerance=tolerance_for(dtypes), largest_integer=largest, table=table)
        self._dtypes = [info.torch_dtype for info in self.signature.inputs]

    def batch_sizes(self, max_batch: int) -> Sequence[int]:
        """Return powers of 2: burnt compiles and selects kernels by shape, which takes up to seconds."""
        return padded_sizes(max_batch) if self.schema.is_batchable else [1]

    @torch.inference_mode()
    def run(self, arrays: Arrays) -> Arrays:
        """Return the outputs; those in bfloat16 as float32, which NumPy has."""
        tensors = [
            # A body is read-only memory, which a module may change in place.
            torch.from_numpy(np.require(array, requirements=["C", "W"])).to(self._device, dtype)
            for array, dtype in zip(arrays, self._dtypes, strict=True)
        ]
        return [_to_array(output) for output in self.signature.call(self.module, tensors)]

    def newest_version(self) -> str:
        """Return the name of the checkpoint that is wanted, such as the best one so far."""
        if self.folder is None:
            return self.version
        return RunFiles.read(self.folder).checkpoint(self._wanted).path.name

    def reloaded(self) -> Self:
        """Return a copy with the weights of the checkpoint that is wanted."""
        if self.folder is None:
            return self
        files = RunFiles.read(self.folder)
        saved, record = files.read_checkpoint(self._wanted, lambda saved: Record.load(model_file(saved.path)))
        module = copy.deepcopy(self.module)
        load_into(module, record)
        restore_fields(module, record)
        return type(self)(
            module, self.signature, self._classes, self.folder, saved.path.name, self._wanted,
            self.schema.table, self.schema.is_multi_label,
        )  # fmt: skip


def _to_array(tensor: Tensor) -> Any:
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    return tensor.cpu().numpy()
