"""Tensors of ``.pt``, ``.pth`` and ``.bin`` files, only through torch's restricted unpickler."""

from __future__ import annotations

import os
import pickletools
import warnings
import zipfile
from collections.abc import Mapping
from typing import IO, Any

import torch
from torch import Tensor

from burnt.errors import RecordError
from burnt.record.formats.safetensors_file import check_count
from burnt.record.stored import check_plain

_NESTED = ("state_dict", "model_state_dict", "model", "module", "net", "network", "weights", "params")
"""Keys under which training programs store a model's state dict, in order of preference."""

_DEEPEST = 4


def find_state_dict(value: Any, where: str) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Find the state dict in what a training program has saved; with notes on what was chosen or ignored."""
    notes: list[str] = []
    for _ in range(_DEEPEST):
        if not isinstance(value, Mapping):
            raise RecordError(
                "this is not a state dict",
                where=where,
                expected="tensors by name",
                found=type(value).__name__,
            )
        inner = [key for key, item in value.items() if isinstance(key, str) and _holds_tensors(item)]
        key = next((key for key in _NESTED if key in inner), None)
        if key is None:
            if not inner or any(isinstance(item, Tensor) for item in value.values()):
                break
            key = inner[0]
            if len(inner) > 1:
                raise RecordError(
                    "there are several state dicts to load from",
                    where=where,
                    expected=f"one, or one under {_NESTED[0]!r}",
                    found=", ".join(map(repr, inner[:12])) + (", ..." if len(inner) > 12 else ""),
                    hint=f"pass one of them: torch.load(path, weights_only=True)[{key!r}]",
                )
        others = [other for other in inner if other != key]
        notes.append(f"taken from {key!r}" + (f", not from {', '.join(map(repr, others))}" if others else ""))
        value = value[key]
    state = {key: item for key, item in value.items() if isinstance(item, Tensor) and isinstance(key, str)}
    if value and not state:
        raise RecordError(
            "this is not a state dict",
            where=where,
            expected="tensors by name",
            found="no tensors",
            hint="torch.from_numpy makes tensors of arrays"
            if any(hasattr(item, "__array__") for item in value.values())
            else None,
        )
    ignored = [repr(key)[:80] for key in value if key not in state]
    if ignored:
        shown = ", ".join(ignored[:5]) + (", ..." if len(ignored) > 5 else "")
        notes.append(f"ignored, as they are not tensors: {shown}")
    return state, tuple(notes)


def _holds_tensors(value: Any) -> bool:
    for _ in range(_DEEPEST):
        if not isinstance(value, Mapping):
            return False
        if any(isinstance(item, Tensor) for item in value.values()):
            return any(isinstance(key, str) for key in value)
        # A state dict inside: {"model": {"state_dict": {...}}}.
        value = next((value[key] for key in _NESTED if key in value), None)
    return False


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

_MOST_INSTRUCTIONS = 5_000_000
"""In one pickle: some 15 s, and 160,000 tensors."""

_TO_THE_MARK = {
    opcode.name for opcode in pickletools.opcodes if pickletools.markobject in opcode.stack_before
}
_TAKES = {
    opcode.name: opcode.stack_before.index(pickletools.markobject)
    if opcode.name in _TO_THE_MARK
    else len(opcode.stack_before)
    for opcode in pickletools.opcodes
}
"""How many items an instruction takes from the stack, with _TO_THE_MARK below the topmost mark."""
_GIVES = {opcode.name: len(opcode.stack_after) for opcode in pickletools.opcodes}

_CONVERT = (
    "where you trust the file: torch.save(torch.load(path, weights_only=False).state_dict(), 'w.pt'),"
    " or for a checkpoint ...load(path, weights_only=False)['state_dict']"
)


def is_legacy(start: bytes) -> bool:
    """Whether a file that starts so is one of torch's legacy format."""
    return start.startswith(_MAGIC)


def read_torch(path: str, *, legacy: bool) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Read the state dict in a file of `torch.save`, with notes on where it was found.

    A zip file is mapped, a legacy one read into memory.
    """
    if path.endswith(".safetensors"):
        raise RecordError(  # torch.load goes by the name
            "a PyTorch file has the name of a safetensors file", where=path, hint="rename it to end in .pt"
        )
    with open(path, "rb") as file:
        if legacy:
            for _ in range(_LEGACY_PICKLES):
                _check_pickle(file, path)
        else:
            _check_zip(file, path)
    try:
        with warnings.catch_warnings():  # of torch's own deprecations
            warnings.simplefilter("ignore")
            loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=not legacy)
    except OSError:
        raise
    except Exception as error:  # a damaged file makes torch raise almost any kind
        raise _damaged(path, error) from None
    state, notes = find_state_dict(loaded, path)
    size = os.path.getsize(path)
    for name, tensor in state.items():
        _check_tensor(name, tensor, path, size)
    return state, notes


def _check_zip(file: IO[bytes], path: str) -> None:
    """Check the members of a zip file, and the pickle in it."""
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
                found = (
                    f"{compressed[0]!r}, compressed" if compressed else "members that torch does not write"
                )
                raise _damaged(path, found)
            with archive.open(names["data.pkl"]) as stream:
                _check_pickle(stream, path)
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
    stack: list[int] = []  # how deeply the tuples of each item are nested
    marks: list[int] = []
    memo: dict[Any, int] = {}
    try:
        for number, (opcode, argument, _) in enumerate(pickletools.genops(file)):
            name = opcode.name
            if number > _MOST_INSTRUCTIONS:
                raise _damaged(path, f"a pickle of more than {_MOST_INSTRUCTIONS:,} instructions")
            if name == "GLOBAL":
                _check_name(str(argument), path)
            elif name in _REFUSED:
                raise _holds_objects(path, f"the pickle instruction {name}")
            elif name == "MARK":
                marks.append(len(stack))
                continue
            elif name in ("BINPUT", "LONG_BINPUT"):
                memo[argument] = stack[-1]
                continue
            start = (marks.pop() if name in _TO_THE_MARK else len(stack)) - _TAKES[name]
            if start < 0:
                raise IndexError("an instruction takes more than the stack holds")
            items = stack[start:]
            del stack[start:]
            depth = max(items, default=0)
            if name in ("BINGET", "LONG_BINGET"):
                depth = memo[argument]
            elif name.startswith("TUPLE"):
                depth += 1
            elif name in ("SETITEM", "SETITEMS"):
                if max(items[1::2], default=0) > 1:
                    raise _damaged(path, "keys that are tuples of tuples")
                depth = 0  # a dict is never hashed
            elif name in ("REDUCE", "NEWOBJ"):
                if depth > 2:
                    raise _damaged(path, "arguments that are tuples of tuples of tuples")
                depth = 0
            elif name == "BINPERSID":
                depth = 0
            stack += [depth] * _GIVES[name]
    except RecordError:
        raise
    except Exception as error:  # pickletools raises many kinds
        raise _damaged(path, error) from None


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
    check_plain(tensor, f"{path}: {name}", "save it again as tensor.to_dense() or tensor.dequantize()")
    stored = min(tensor.untyped_storage().nbytes(), size)
    if tensor.is_meta or tensor.numel() * tensor.element_size() > stored:
        raise RecordError(
            "a tensor is not stored as plain values",
            where=f"{path}: {name}",
            expected="a dense tensor with a value in the file for each element",
            found="a tensor on the meta device"
            if tensor.is_meta
            else f"shape {tuple(tensor.shape)} from {stored} bytes",
            hint="save it again as tensor.contiguous()",
        )


def _damaged(path: str, error: object) -> RecordError:
    return RecordError(
        "a PyTorch file is damaged",
        where=path,
        found=(str(error) or type(error).__name__).strip().splitlines()[0][:200],
        hint="the file was cut off or overwritten, or torch.save did not write it: take another copy",
    )
