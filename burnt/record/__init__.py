"""Records: the tensors and metadata of a module, the files that store them, and weights from other programs.

`record` has `Record`, and creates it from a module; `safetensors_file` reads and writes files. `loading` has
`load_weights`, which takes its tensors from any `source` that `sources` can open: `torch_file`, `npz_file`
and `burnpack_file` (with `cbor`) read the other formats. `layout` maps the names and arrangements of other
programs to those of a model, and makes `arranged` tensors of the stored ones; `layouts` has those of Burn,
timm and TensorFlow. `fit` compares source and module, `report` says what was loaded. `converting` writes any
source to the formats in `writers`; `folder` writes shards, `casting` converts dtypes. Only `torch_file`
unpickles, and nothing but tensors.
"""

from __future__ import annotations

from burnt.record import layouts
from burnt.record.arranging.layout import Drop, Join, Keep, Layout, Rename, Split, Step
from burnt.record.arranging.wrappers import without_wrappers
from burnt.record.converting import ConvertReport, convert_weights
from burnt.record.formats.safetensors_file import read_document, read_tensors, write_tensors
from burnt.record.loading import ABSENT, Renumber, equal_as_json, load_into, load_weights, static_differences
from burnt.record.record import (
    FORMAT,
    Record,
    check_format,
    constants_of,
    record_of,
    static_fields_of,
    unwrapped,
)
from burnt.record.report import LoadReport
from burnt.record.sources import read_weights

__all__ = [
    "ABSENT",
    "FORMAT",
    "ConvertReport",
    "Drop",
    "Join",
    "Keep",
    "Layout",
    "LoadReport",
    "Record",
    "Rename",
    "Renumber",
    "Split",
    "Step",
    "check_format",
    "constants_of",
    "convert_weights",
    "equal_as_json",
    "layouts",
    "load_into",
    "load_weights",
    "read_document",
    "read_tensors",
    "read_weights",
    "record_of",
    "static_differences",
    "static_fields_of",
    "unwrapped",
    "without_wrappers",
    "write_tensors",
]
