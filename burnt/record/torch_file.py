"""Tensors of ``.pt``, ``.pth`` and ``.bin`` files, through torch's restricted unpickler alone."""

from __future__ import annotations

import pickletools
import warnings
import zipfile
from typing import IO

import torch
from torch import Tensor

from burnt.errors import RecordError
from burnt.record.files import check_count
from burnt.record.source import find_state_dict

_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""The first pickle of a file that torch before 1.6 wrote, and writes still on request."""

_LEGACY_PICKLES = 5
"""The magic number, a version, the byte order, the object and the names of its storages."""

_MODULES = {
    "torch",
    "torch._tensor",
    "torch._utils",
    "torch.cuda",
    "torch.nn.parameter",
    "torch.serialization",
    "torch.storage",
}
_NAMES = {
    "collections OrderedDict",
    "collections Counter",
    "_codecs encode",
    "builtins set",
    "__builtin__ set",
}
_REFUSED = {"STACK_GLOBAL", "INST", "OBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4"}

_CONVERT = (
    "where you trust the file: torch.save(torch.load(path, weights_only=False).state_dict(), 'w.pt'),"
    " or for a checkpoint ...load(path, weights_only=False)['state_dict']"
)


def is_legacy(start: bytes) -> bool:
    """Whether a file that starts so is one of torch's legacy format."""
    return start.startswith(_MAGIC)


def read_torch(path: str, *, legacy: bool) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Read the state dict in a file of `torch.save`; a zip file is mapped, a legacy one read into memory.

    Returns:
        the tensors by name; notes on where they were found.

    Raises:
        RecordError: the file is damaged, or holds more than tensors in plain containers.
        OSError: the file cannot be read.
    """
    with open(path, "rb") as file:
        if legacy:
            size = file.seek(0, 2)
            file.seek(0)
            for _ in range(_LEGACY_PICKLES):
                _check_pickle(file, path)
        else:
            size = _check_zip(file, path)
    if path.endswith(".safetensors"):
        raise RecordError(  # torch.load goes by the name
            "a PyTorch file has the name of a safetensors file", where=path, hint="rename it to end in .pt"
        )
    try:
        with warnings.catch_warnings():  # of torch's own deprecations
            warnings.simplefilter("ignore")
            loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=not legacy)
    except OSError:
        raise
    except Exception as error:  # a damaged file makes torch raise almost any kind
        raise _damaged(path, error) from None
    state, notes = find_state_dict(loaded, path)
    for name, tensor in state.items():
        _check_tensor(name, tensor, path, size)
    return state, notes


def _check_zip(file: IO[bytes], path: str) -> int:
    """Check the members of a zip file; return the number of bytes that its tensors may have."""
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            names = {member.filename.partition("/")[2]: member for member in members}
            if "constants.pkl" in names:
                raise RecordError(
                    "this is a TorchScript program, not a file of tensors",
                    where=path,
                    hint="where you trust the file: torch.save(torch.jit.load(path).state_dict(), 'w.pt')",
                )
            check_count(len(members), path)
            # torch stores its members uncompressed: a small file cannot become a large one.
            compressed = [member.filename for member in members if member.compress_type != zipfile.ZIP_STORED]
            if compressed or len(names) < len(members) or "data.pkl" not in names:
                raise _damaged(
                    path,
                    f"{compressed[0]!r}, compressed" if compressed else "members that torch does not write",
                )
            with archive.open(names["data.pkl"]) as stream:
                _check_pickle(stream, path)
            return sum(member.file_size for member in members)
    except RecordError:
        raise
    except Exception as error:  # zipfile raises many kinds
        raise _damaged(path, error) from None


def _check_pickle(file: IO[bytes], path: str) -> None:
    """Check what a pickle names, without executing it.

    torch's unpickler does not call functions that it does not know either. This check comes first since it
    names the class in the message, and since that unpickler would run ``bytearray(10**12)`` and hash tuples
    of tuples of tuples, each many times the one before: for years.
    """
    stack: list[int | None] = []  # how deeply each item's tuples are nested; None is a mark
    memo: dict[int, int] = {}
    storages = 0
    try:
        for opcode, argument, _ in pickletools.genops(file):
            if opcode.name == "GLOBAL":
                _check_name(str(argument), path)
            elif opcode.name in _REFUSED:
                raise _holds_objects(path, f"the pickle instruction {opcode.name}")
            items = _pop(stack, [item.name for item in opcode.stack_before])
            depth = max((item for item in items if item is not None), default=0)
            if opcode.name == "BINPERSID":
                storages += 1
                depth = 0
            elif opcode.name in ("BINGET", "LONG_BINGET"):
                depth = memo[argument]  # type: ignore[index]
            elif opcode.name.startswith("TUPLE"):
                depth += 1
            elif opcode.name in ("SETITEM", "SETITEMS"):
                keys = [item for item in items if item is not None][1::2]
                if max(keys, default=0) > 1:
                    raise _damaged(path, "keys that are tuples of tuples")
                depth = 0  # a dict is never hashed
            elif opcode.name in ("REDUCE", "NEWOBJ"):
                if depth > 2:
                    raise _damaged(path, "arguments that are tuples of tuples of tuples")
                depth = 0
            stack += [None if item.name == "mark" else depth for item in opcode.stack_after]
            if opcode.name in ("BINPUT", "LONG_BINPUT"):
                memo[argument] = stack[-1] or 0  # type: ignore[index]
            check_count(storages, path)
    except RecordError:
        raise
    except Exception as error:  # pickletools raises many kinds
        raise _damaged(path, error) from None


def _pop(stack: list[int | None], before: list[str]) -> list[int | None]:
    """Remove from the stack what an instruction takes from it."""
    if "mark" in before:
        mark = len(stack) - 1 - stack[::-1].index(None)
        start = mark - before.index("mark")
    else:
        start = len(stack) - len(before)
    if start < 0:
        raise IndexError("an instruction takes more than the stack holds")
    items = stack[start:]
    del stack[start:]
    return items


def _check_name(name: str, path: str) -> None:
    module, _, attribute = name.partition(" ")
    if module in _MODULES or name in _NAMES:
        return  # torch's unpickler decides which of them it calls
    raise _holds_objects(path, f"{module}.{attribute}")


def _holds_objects(path: str, found: str) -> RecordError:
    return RecordError(
        "the file holds Python objects besides tensors, or a whole model; they are not unpickled",
        where=path,
        expected="a state dict",
        found=found,
        hint=_CONVERT,
    )


def _check_tensor(name: str, tensor: Tensor, path: str, size: int) -> None:
    problem = None
    if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
        problem = f"a {type(tensor).__name__} of layout {tensor.layout}"
    elif tensor.is_quantized or tensor.is_meta:
        problem = f"dtype {tensor.dtype} on {tensor.device}"
    elif tensor.numel() * tensor.element_size() > min(tensor.untyped_storage().nbytes(), size):
        problem = f"shape {tuple(tensor.shape)} from {tensor.untyped_storage().nbytes()} bytes"
    if problem:
        raise RecordError(
            "a tensor is not stored as plain values",
            where=f"{path}: {name}",
            expected="a dense tensor with a value in the file for each element",
            found=problem,
            hint="save it again as tensor.contiguous() or tensor.to_dense()",
        )


def _damaged(path: str, error: object) -> RecordError:
    return RecordError(
        "a PyTorch file is damaged",
        where=path,
        found=(str(error) or type(error).__name__).strip().splitlines()[0][:200],
        hint="the file was cut off or overwritten, or torch.save did not write it: take another copy",
    )
