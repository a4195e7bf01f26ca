"""Records: the tensors and metadata of a module, the files that store them, and weights from other programs.

`record` creates them from modules; `loading` takes any source that `sources` opens, `converting` writes it in
another format. Only `formats/torch_file` unpickles, and nothing but tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from burnt._lazy import own_names
from burnt.record import layouts as layouts
from burnt.record.arranging.layout import Drop as Drop
from burnt.record.arranging.layout import Join as Join
from burnt.record.arranging.layout import Keep as Keep
from burnt.record.arranging.layout import Layout as Layout
from burnt.record.arranging.layout import Rename as Rename
from burnt.record.arranging.layout import Split as Split
from burnt.record.arranging.layout import Step as Step
from burnt.record.arranging.layout import without_wrappers as without_wrappers
from burnt.record.converting import ConvertReport as ConvertReport
from burnt.record.converting import convert_weights as convert_weights
from burnt.record.formats.safetensors_file import read_document as read_document
from burnt.record.formats.safetensors_file import read_tensors as read_tensors
from burnt.record.formats.safetensors_file import write_tensors as write_tensors
from burnt.record.loading import ABSENT as ABSENT
from burnt.record.loading import Renumber as Renumber
from burnt.record.loading import equal_as_json as equal_as_json
from burnt.record.loading import load_into as load_into
from burnt.record.loading import load_weights as load_weights
from burnt.record.loading import static_differences as static_differences
from burnt.record.record import FORMAT as FORMAT
from burnt.record.record import Record as Record
from burnt.record.record import check_format as check_format
from burnt.record.record import constants_of as constants_of
from burnt.record.record import record_of as record_of
from burnt.record.record import static_fields_of as static_fields_of
from burnt.record.record import unwrapped as unwrapped
from burnt.record.report import LoadReport as LoadReport
from burnt.record.sources import read_weights as read_weights

if not TYPE_CHECKING:  # type checkers take the imports above as exports
    __all__ = ["ABSENT", "FORMAT", "Step", "layouts", *own_names(globals())]
