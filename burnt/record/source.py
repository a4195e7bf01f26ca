"""What every source of weights looks like to `load_weights`: stored tensors by name, and notes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from burnt.record.record import Record
from burnt.record.stored import StoredTensor


@dataclass(frozen=True)
class Source:
    """An open source of weights: what messages call its `kind`, and its tensors by name.

    The tensors of `record` are not used, only its metadata; `metadata` is what other programs stored. `notes`
    say what was decided when the source was opened. `path` is of a file or folder; `shards` of a folder with
    several files, the file's name by the tensor's.
    """

    kind: str
    tensors: Mapping[str, StoredTensor]
    path: str | None = None
    record: Record = field(default_factory=lambda: Record({}))
    notes: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    shards: Mapping[str, str] = field(default_factory=dict)
    format: str = ""
