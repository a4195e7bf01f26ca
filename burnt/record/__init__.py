"""Records: what a module is made of, as named tensors and metadata, and the files that hold them.

`record` is `Record` and how it is taken from and loaded into a module; `files` is how it lies on a disk.
Nothing here unpickles anything.
"""

from __future__ import annotations

from burnt.record.files import read_document, read_tensors, write_tensors
from burnt.record.record import FORMAT, LoadReport, Record, load_into, record_of

__all__ = [
    "FORMAT",
    "LoadReport",
    "Record",
    "load_into",
    "read_document",
    "read_tensors",
    "record_of",
    "write_tensors",
]
