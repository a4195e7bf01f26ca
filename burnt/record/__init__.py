"""Records: the tensors and metadata of a module, and the files that store them.

`record` has `Record`, and creates it from a module and loads it into one; `files` reads and writes the files.
Nothing here uses pickle.
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
