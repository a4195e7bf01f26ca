"""Layouts: how the tensors of another program map to those of a model, in both directions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import torch
from torch import Tensor, nn

from burnt.errors import RecordError
from burnt.record.source import MemoryTensor
from burnt.record.stored import StoredTensor

__all__ = ["Drop", "Join", "Keep", "Layout", "Rename", "Split", "Step", "burn_layout"]


@dataclass(frozen=True)
class Rename:
    """A tensor, or all tensors of a module, under another name.

    Args:
        theirs: pattern on names in the file: ``*`` is within one part between dots, a leading ``**`` any
            number of parts.
        ours: the path in the model, with as many stars.
        transpose: whether a matrix is stored transposed.
    """

    theirs: str
    ours: str
    transpose: bool = False


@dataclass(frozen=True)
class Join:
    """Several tensors of the file are one of the model.

    Args:
        theirs: the parts, in order.
        ours: the path of the whole in the model.
        sizes: of the parts along `dim` of the whole, None for equal ones; used when writing.
        dim: along which the parts are joined.
        groups: the whole has this many groups of rows, each with a piece of every part (GPT-NeoX stores the
            queries, keys and values of each head together).
        transpose: whether the parts are stored transposed; `dim` is that of the model's tensor.
    """

    theirs: tuple[str, ...]
    ours: str
    sizes: tuple[int, ...] | None = None
    dim: int = 0
    groups: int = 1
    transpose: bool = False


@dataclass(frozen=True)
class Split:
    """One tensor of the file is several of the model; arguments as in `Join`, `sizes` used when reading."""

    theirs: str
    ours: tuple[str, ...]
    sizes: tuple[int, ...] | None = None
    dim: int = 0
    groups: int = 1
    transpose: bool = False


@dataclass(frozen=True)
class Drop:
    """Tensors of the file that the model does not have: masks and tables that its sizes determine."""

    theirs: str


@dataclass(frozen=True)
class Keep:
    """Tensors of the model that the file need not have, and which keep their values where it does not."""

    ours: str


Step: TypeAlias = tuple[str, str] | Rename | Join | Split | Drop | Keep


@dataclass(frozen=True)
class Layout:
    """How another program names and arranges the tensors of a model.

    The first step that matches a name is applied; names that no step matches stay as they are.

    Args:
        steps: pairs of names ``(theirs, ours)``, `Rename`, `Join`, `Split`, `Drop` and `Keep`.
        prefix: module that holds the body in files of a model with a head (``"bert"``), and that files of the
            body alone lack. Steps are written without it; it is taken away wherever it is read.
        heads: patterns on names in the file that are outside of `prefix`.
        prefixed: whether written files have the prefix.

    >>> import torch
    >>> layout = Layout([("h.*.ln", "layers.*.norm"), Rename("out.w", "head.weight", transpose=True)])
    >>> layout.write({"layers.3.norm.weight": torch.ones(2), "head.weight": torch.ones(2, 5)}).keys()
    dict_keys(['h.3.ln.weight', 'out.w'])
    """

    steps: Sequence[Step]
    prefix: str | None = None
    heads: tuple[str, ...] = ()
    prefixed: bool = False
    _matchers: list[_Matcher] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "_matchers", [_Matcher(step) for step in self.steps if not isinstance(step, Keep)]
        )

    def read(self, tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
        """Return the tensors of a file under the model's names, as the model arranges them; nothing is read.

        Raises:
            RecordError: a tensor does not have as many rows as its parts, or two get one name.
        """
        without = {self._without_prefix(name): stored for name, stored in tensors.items()}
        return _apply(self._matchers, without if len(without) == len(tensors) else tensors, reading=True)

    def write(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return a model's tensors under the names of the file, as the file arranges them.

        What the file names and arranges as the model does shares its memory.

        Raises:
            RecordError: as `read`.
        """
        stored: Mapping[str, StoredTensor] = {name: MemoryTensor.of(value) for name, value in tensors.items()}
        inverse = [_Matcher(_inverse(step)) for step in self.steps if not isinstance(step, Drop)]
        written = _apply(inverse, stored, reading=False)
        if self.prefixed:
            written = {
                name if self._is_head(name) else f"{self.prefix}.{name}": value
                for name, value in written.items()
            }
        return {name: _read(value) for name, value in written.items()}

    def keeps(self, path: str) -> bool:
        """Whether a file need not have a tensor of the model."""
        return any(isinstance(step, Keep) and _regex(step.ours).fullmatch(path) for step in self.steps)

    def _without_prefix(self, name: str) -> str:
        return name if self.prefix is None else name.removeprefix(f"{self.prefix}.")

    def _is_head(self, name: str) -> bool:
        return any(_regex(head).fullmatch(name) for head in self.heads)


def burn_layout(model: nn.Module) -> Layout:
    """Return the layout of Burn's records of a model: Linears transposed, norms with ``gamma`` and ``beta``.

    The attention of burnt.nn is read from Burn's four Linears ``query``, ``key``, ``value`` and ``output``.
    """
    steps: list[Step] = []
    for path, module in model.named_modules():
        dot = f"{path}." if path else ""
        if "norm" in type(module).__name__.lower():
            steps += [Rename(f"{dot}gamma", f"{dot}weight"), Rename(f"{dot}beta", f"{dot}bias")]
            steps.append(Keep(f"{dot}num_batches_tracked"))
        elif getattr(module, "in_proj_weight", None) is not None:
            parts = tuple(f"{dot}{name}" for name in ("query", "key", "value"))
            sizes = _attention_sizes(module)
            steps.append(
                Join(tuple(f"{p}.weight" for p in parts), f"{dot}in_proj_weight", sizes, transpose=True)
            )
            steps.append(Join(tuple(f"{part}.bias" for part in parts), f"{dot}in_proj_bias", sizes))
            steps.append(Rename(f"{dot}output.weight", f"{dot}out_proj.weight", transpose=True))
            steps.append(Rename(f"{dot}output.bias", f"{dot}out_proj.bias"))
        elif isinstance(module, nn.Linear) and not dot.endswith(".out_proj."):
            steps.append(Rename(f"{dot}weight", f"{dot}weight", transpose=True))
    return Layout(steps)


def _attention_sizes(module: nn.Module) -> tuple[int, ...] | None:
    sizes = getattr(module, "_sizes", None)
    return None if sizes is None else tuple(sizes())


@dataclass(frozen=True)
class _TransposedTensor(StoredTensor):
    inner: StoredTensor

    @classmethod
    def of(cls, inner: StoredTensor) -> StoredTensor:
        return inner if len(inner.shape) != 2 else cls(inner.shape[::-1], inner.dtype, inner)

    def read_into(self, out: Tensor) -> None:
        self.inner.read_into(out.T)

    def verify(self, where: str) -> None:
        self.inner.verify(where)


@dataclass(frozen=True)
class _JoinedTensor(StoredTensor):
    parts: tuple[StoredTensor, ...]
    dim: int
    groups: int

    def read_into(self, out: Tensor) -> None:
        pieces = _pieces(out, [part.shape[self.dim] for part in self.parts], self.dim, self.groups)
        for part, piece in zip(self.parts, pieces, strict=True):
            if self.groups == 1:
                part.read_into(piece)
            else:
                piece.copy_(_grouped(_read(part), self.dim, self.groups))

    def verify(self, where: str) -> None:
        for part in self.parts:
            part.verify(where)


@dataclass(frozen=True)
class _PartOfTensor(StoredTensor):
    whole: StoredTensor
    sizes: tuple[int, ...]
    index: int
    dim: int
    groups: int

    def read_into(self, out: Tensor) -> None:
        piece = _pieces(_read(self.whole), self.sizes, self.dim, self.groups)[self.index]
        out.copy_(piece if self.groups == 1 else piece.flatten(self.dim, self.dim + 1))

    def verify(self, where: str) -> None:
        self.whole.verify(where)


def _pieces(whole: Tensor, sizes: Sequence[int], dim: int, groups: int) -> Sequence[Tensor]:
    if groups == 1:
        return torch.split(whole, list(sizes), dim)
    return torch.split(_grouped(whole, dim, groups), [size // groups for size in sizes], dim + 1)


def _grouped(tensor: Tensor, dim: int, groups: int) -> Tensor:
    return tensor.view(*tensor.shape[:dim], groups, -1, *tensor.shape[dim + 1 :])


def _read(stored: StoredTensor) -> Tensor:
    if isinstance(stored, MemoryTensor):
        return stored.tensor
    out = torch.empty(stored.shape, dtype=stored.dtype, device="cpu")
    stored.read_into(out)
    return out


class _Matcher:
    """A step with its patterns compiled."""

    def __init__(self, step: Step) -> None:
        self.step = Rename(*step) if isinstance(step, tuple) else step
        theirs = self.step.theirs  # type: ignore[union-attr]
        self.sources = [_regex(name) for name in (theirs if isinstance(theirs, tuple) else (theirs,))]

    def match(self, name: str) -> tuple[int, tuple[str, ...], str] | None:
        """Return which source of the step a name is, what its stars stand for, and the rest of it."""
        for index, regex in enumerate(self.sources):
            if match := regex.fullmatch(name):
                *stars, rest = match.groups()
                return index, tuple(stars), rest or ""
        return None


def _regex(pattern: str) -> re.Pattern[str]:
    """Compile a pattern on the path of a tensor or of a module above it; the last group is the rest."""
    parts = [
        r"((?:[^.]+\.)*)" if part == "**" else re.escape(part).replace(r"\*", "([^.]+)") + r"\."
        for part in pattern.split(".")
    ]
    return re.compile("".join(parts).removesuffix(r"\.") + r"(\..+)?")


def _name(pattern: str, stars: Iterable[str], rest: str) -> str:
    values = iter(stars)
    return re.sub(r"\*\*\.|\*", lambda _: next(values), pattern) + rest


def _apply(
    matchers: Sequence[_Matcher], tensors: Mapping[str, StoredTensor], *, reading: bool
) -> dict[str, StoredTensor]:
    """Apply the steps to each tensor: what the file stores transposed is turned on the file's side."""
    done: dict[str, StoredTensor] = {}
    parts: dict[tuple[int, tuple[str, ...], str], dict[int, str]] = {}

    def put(name: str, stored: StoredTensor, source: str) -> None:
        if name in done:
            raise RecordError(
                "the layout gives two tensors one name", where=name, found=f"{source!r} and another"
            )
        done[name] = stored

    for name, stored in tensors.items():
        number, found = next(
            ((n, match) for n, matcher in enumerate(matchers) if (match := matcher.match(name))), (0, None)
        )
        if found is None:
            put(name, stored, name)
            continue
        step, (index, stars, rest) = matchers[number].step, found
        match step:
            case Rename():
                arranged = _TransposedTensor.of(stored) if step.transpose else stored
                put(_name(step.ours, stars, rest), arranged, name)
            case Split():
                arranged = _TransposedTensor.of(stored) if step.transpose and reading else stored
                sizes = _split_sizes(step, arranged, name)
                for part, ours in enumerate(step.ours):
                    shape = list(arranged.shape)
                    shape[step.dim] = sizes[part]
                    piece = _PartOfTensor(
                        tuple(shape), stored.dtype, arranged, sizes, part, step.dim, step.groups
                    )
                    turned = _TransposedTensor.of(piece) if step.transpose and not reading else piece
                    put(_name(ours, stars, rest), turned, name)
            case Join():
                parts.setdefault((number, stars, rest), {})[index] = name
    for (number, stars, rest), names in parts.items():
        step = matchers[number].step
        assert isinstance(step, Join)
        if len(names) < len(step.theirs):  # the error of the misfit names them
            for name in names.values():
                put(name, tensors[name], name)
        else:
            ordered = [tensors[names[index]] for index in range(len(names))]
            if step.transpose and reading:
                ordered = [_TransposedTensor.of(part) for part in ordered]
            whole = _joined(step, ordered, list(names.values()))
            if step.transpose and not reading:
                whole = _TransposedTensor.of(whole)
            put(_name(step.ours, stars, rest), whole, names[0])
    return done


def _split_sizes(step: Split, whole: StoredTensor, name: str) -> tuple[int, ...]:
    rows = whole.shape[step.dim] if whole.shape else 0
    sizes = step.sizes or (rows // len(step.ours),) * len(step.ours)
    if not whole.shape or sum(sizes) != rows or any(size % step.groups for size in sizes):
        raise RecordError(
            "a tensor of the file cannot be split into the model's",
            where=name,
            expected=f"rows for {len(step.ours)} parts"
            + (f" of {', '.join(map(str, step.sizes))}" if step.sizes else ""),
            found=f"shape {whole.shape}",
        )
    return sizes


def _joined(step: Join, parts: list[StoredTensor], names: list[str]) -> StoredTensor:
    first = parts[0]
    same = {(part.shape[: step.dim], part.shape[step.dim + 1 :], part.dtype) for part in parts}
    if not first.shape or len(same) > 1 or any(part.shape[step.dim] % step.groups for part in parts):
        raise RecordError(
            "tensors of the file cannot be joined into one of the model's",
            where=", ".join(names),
            expected=f"equal dtypes, and equal shapes but for axis {step.dim}",
            found=", ".join(f"{part.shape} {part.dtype}" for part in parts),
        )
    shape = list(first.shape)
    shape[step.dim] = sum(part.shape[step.dim] for part in parts)
    return _JoinedTensor(tuple(shape), first.dtype, tuple(parts), step.dim, step.groups)


def _inverse(step: Step) -> Step:
    match step:
        case tuple():
            return step[1], step[0]
        case Rename():
            return replace(step, theirs=step.ours, ours=step.theirs)
        case Join():
            return Split(step.ours, step.theirs, step.sizes, step.dim, step.groups, step.transpose)
        case Split():
            return Join(step.ours, step.theirs, step.sizes, step.dim, step.groups, step.transpose)
        case Keep():
            return Drop(step.ours)
        case Drop():
            return Keep(step.theirs)
