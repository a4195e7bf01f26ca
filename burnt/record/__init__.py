"""Records: the tensors and metadata of a module, the files that store them, and weights from other programs.

`record` creates them from modules; `loading` takes any source that `sources` opens, `converting` writes it in
another format. Only `formats/torch_file` unpickles, and nothing but tensors.
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
