"""What every source of weights looks like to `load_weights`: stored tensors by name, and notes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from burnt.record.record import Record
from burnt.record.stored import StoredTensor


@dataclass(frozen=True)
class Source:
    """An open source of weights.

    Args:
        kind: what messages call it: ``"file"``, ``"folder"``, ``"state dict"`` or ``"record"``.
        tensors: by name.
        path: of a file or folder.
        record: the metadata; its tensors are not used.
        notes: what was decided when the source was opened.
        metadata: what other programs stored beside the tensors.
        shards: of a folder with several files, the file's name by the tensor's.
        format: the name of the file format.
    """

    kind: str
    tensors: Mapping[str, StoredTensor]
    path: str | None = None
    record: Record = field(default_factory=lambda: Record({}))
    notes: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    shards: Mapping[str, str] = field(default_factory=dict)
    format: str = ""
