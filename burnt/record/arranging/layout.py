"""Layouts: how the tensors of another program map to a model's, in both directions.

A `Layout` is a table of steps. Each says what a tensor of the file ("theirs") is in the model ("ours").
An `ArrangedTensor` is read when needed, from the same file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from burnt.errors import RecordError
from burnt.record.stored import MemoryTensor, StoredTensor


@dataclass(frozen=True)
class Rename:
    """A tensor, or all tensors of a module, under another name.

    Args:
        theirs: pattern on names in the file: ``*`` matches within one part between dots, ``**`` any number
            of parts.
        ours: the path in the model, with the same stars.
        transpose: whether the file stores matrices transposed; or the order of its axes in the model, as
            Tensor.permute takes it: ``(3, 2, 0, 1)`` for the kernels of Keras and Flax. Tensors with another
            number of axes stay as they are.
    """

    theirs: str
    ours: str
    transpose: bool | tuple[int, ...] = False


@dataclass(frozen=True)
class Join:
    """Several tensors of the file are one of the model; or all tensors of several modules.

    Args:
        theirs: the parts, in order; patterns as in `Rename`.
        ours: the path of the whole in the model.
        sizes: the sizes of the parts along `dim`, None for equal ones; used when writing.
        dim: the model's axis along which the parts are joined.
        groups: the whole consists of so many groups, each with a piece of every part.
        transpose: how the file stores the parts, as in `Rename`.
    """

    theirs: tuple[str, ...]
    ours: str
    sizes: tuple[int, ...] | None = None
    dim: int = 0
    groups: int = 1
    transpose: bool | tuple[int, ...] = False


@dataclass(frozen=True)
class Split:
    """One tensor of the file is several of the model, as fused queries, keys and values; see `Join`.

    Args:
        theirs: the name of the whole tensor in the file.
        ours: the paths of the parts in the model, in order.
        sizes: the sizes of the parts along `dim`, None for equal ones; used when reading.
        dim: the model's axis along which the whole is split.
        groups: the whole consists of so many groups, each with a piece of every part: GPT-NeoX stores the
            query, key and value of each head together.
        transpose: how the file stores the whole, as in `Rename`.
    """

    theirs: str
    ours: tuple[str, ...]
    sizes: tuple[int, ...] | None = None
    dim: int = 0
    groups: int = 1
    transpose: bool | tuple[int, ...] = False


@dataclass(frozen=True)
class Drop:
    """Tensors of the file that the model does not have: masks and tables that its sizes determine."""

    theirs: str


@dataclass(frozen=True)
class Keep:
    """Tensors of the model that the file need not have, and which then keep their values; not written."""

    ours: str


Step: TypeAlias = tuple[str, str] | Rename | Join | Split | Drop | Keep


@dataclass(frozen=True)
class Arrangement:
    """The tensors of a file by the model's names; nothing is read yet.

    `origins` are the names in the file that each comes from; `prefixed` says that it has the layout's prefix.
    """

    tensors: dict[str, StoredTensor]
    origins: dict[str, tuple[str, ...]]
    prefixed: bool = False


@dataclass(frozen=True)
class Layout:
    """How another program names and arranges the tensors of a model: for `load_weights`, and back.

    For each name the first step that matches it is applied; what no step matches stays as it is.

    Args:
        steps: pairs of names ``(theirs, ours)``, `Rename`, `Join`, `Split`, `Drop` and `Keep`.
        prefix: module that holds the body in files of a model with a head (``"bert"``), and that files of
            only the body lack. Steps are written without it; it is taken away wherever it is read.
        heads: patterns on names in the file that are outside of `prefix`.
        prefixed: whether written files have the prefix.

    >>> import torch
    >>> layout = Layout([("h.*.ln", "layers.*.norm"), Split("h.*.qkv", ("layers.*.q", "layers.*.k"))])
    >>> tensors = layout.read({"h.3.ln.weight": torch.ones(2), "h.3.qkv.weight": torch.ones(4, 2)})
    >>> {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    {'layers.3.norm.weight': (2,), 'layers.3.q.weight': (2, 2), 'layers.3.k.weight': (2, 2)}
    >>> {name: tuple(tensor.shape) for name, tensor in layout.write(tensors).items()}
    {'h.3.ln.weight': (2,), 'h.3.qkv.weight': (4, 2)}

    Raises:
        RecordError: a step cannot be applied in both directions.
    """

    steps: Sequence[Step]
    prefix: str | None = None
    heads: tuple[str, ...] = ()
    prefixed: bool = False

    def __post_init__(self) -> None:
        for step in self.steps:
            _check_step(step)

    def read(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of a file under the model's names, as the model arranges them.

        They share memory with the file's where no values have to be moved.

        Raises:
            RecordError: a tensor cannot be split or joined, or two get one name.
        """
        arranged = self.arrange({name: MemoryTensor.of(value) for name, value in tensors.items()})
        return {name: value_of(stored) for name, stored in arranged.tensors.items()}

    def write(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return a model's tensors under the names of the file, as the file arranges them.

        They share memory with the model's where no values have to be moved.

        Raises:
            RecordError: as `read`.
        """
        stored = {name: MemoryTensor.of(value) for name, value in tensors.items()}
        arranged = _arrange(self._writing, stored, {name: name for name in stored}, reading=False)
        return {
            self.with_prefix(name) if self.prefixed else name: value_of(value)
            for name, value in arranged.tensors.items()
        }

    def arrange(self, tensors: Mapping[str, StoredTensor]) -> Arrangement:
        """Do what `read` does, without reading any values.

        Raises:
            RecordError: as `read`.
        """
        names = {self._without_prefix(name): name for name in tensors}
        if len(names) < len(tensors):  # one name with and without the prefix: this is not a prefix
            names = {name: name for name in tensors}
        stored = {name: tensors[old] for name, old in names.items()}
        return _arrange(self._reading, stored, names, reading=True)

    def names_of(self, path: str) -> tuple[str, ...]:
        """Return which tensors of a file, named without the prefix, a tensor of the model comes from."""
        found = self._writing.find(path)
        if found is None:
            return (path,)
        step = self._writing.steps[found.step]
        theirs = () if isinstance(step, Drop) else step.ours
        return tuple(_name(name, found) for name in ((theirs,) if isinstance(theirs, str) else theirs))

    def keeps(self, path: str) -> bool:
        """Whether a file need not have a tensor of the model."""
        return any(isinstance(step, Keep) and _regex(step.ours).fullmatch(path) for step in self.steps)

    def with_prefix(self, name: str) -> str:
        """Return a name as a file with the prefix has it."""
        if self.prefix is None or any(_regex(head).fullmatch(name) for head in self.heads):
            return name
        return f"{self.prefix}.{name}"

    @cached_property
    def _reading(self) -> _Table:
        return _Table([step for step in map(_plain, self.steps) if not isinstance(step, Keep)])

    @cached_property
    def _writing(self) -> _Table:
        return _Table([_inverse(step) for step in map(_plain, self.steps) if not isinstance(step, Drop)])

    def _without_prefix(self, name: str) -> str:
        return name if self.prefix is None else name.removeprefix(f"{self.prefix}.")


_Applied: TypeAlias = Rename | Join | Split | Drop


class _Match(NamedTuple):
    """Which step matches a name, which of the step's patterns, what its stars stand for, and the rest."""

    step: int
    pattern: int
    stars: tuple[str, ...]
    rest: str


class _Table:
    """Steps, to be looked up by name."""

    def __init__(self, steps: Sequence[_Applied]) -> None:
        self.steps = steps
        # Names without stars are looked up, since the layout of a model may have a step for each tensor.
        self._names: dict[str, tuple[int, int]] = {}
        self._patterns: list[tuple[int, int, re.Pattern[str]]] = []
        for number, step in enumerate(steps):
            for index, pattern in enumerate((step.theirs,) if isinstance(step.theirs, str) else step.theirs):
                if "*" in pattern:
                    self._patterns.append((number, index, _regex(pattern)))
                else:
                    self._names.setdefault(pattern, (number, index))

    def find(self, name: str) -> _Match | None:
        """Return the first step that matches a name."""
        best: _Match | None = None
        end = len(name)
        while end > 0 and self._names:
            entry = self._names.get(name[:end])
            if entry is not None and (best is None or entry[0] < best.step):
                best = _Match(*entry, (), name[end:])
            end = name.rfind(".", 0, end)
        for number, index, pattern in self._patterns:
            if best is not None and best.step < number:
                break
            if match := pattern.fullmatch(name):
                *stars, rest = match.groups()
                return _Match(number, index, tuple(stars), rest or "")
        return best


@cache
def _regex(pattern: str) -> re.Pattern[str]:
    """Compile a pattern on the path of a tensor or of a module above it; the last group is the rest."""
    parts = [
        r"((?:[^.]+\.)*)" if part == "**" else re.escape(part).replace(r"\*", "([^.]+)") + r"\."
        for part in pattern.split(".")
    ]
    return re.compile("".join(parts).removesuffix(r"\.") + r"(\..+)?")


def _name(pattern: str, match: _Match) -> str:
    values = iter(match.stars)
    return re.sub(r"\*\*\.|\*", lambda _: next(values), pattern) + match.rest


def _arrange(
    table: _Table, tensors: Mapping[str, StoredTensor], names: Mapping[str, str], *, reading: bool
) -> Arrangement:
    """Apply the steps to each tensor."""
    done = Arrangement({}, {}, prefixed=any(name != shown for name, shown in names.items()))
    parts: dict[tuple[int, tuple[str, ...], str], dict[int, str]] = {}
    for name, stored in tensors.items():
        match = table.find(name)
        if match is None:
            _put(done, name, stored, [names[name]])
            continue
        step = table.steps[match.step]
        if isinstance(step, Join):
            parts.setdefault((match.step, match.stars, match.rest), {})[match.pattern] = name
        elif isinstance(step, Rename):
            axes = _axes(step.transpose, reading=reading)
            _put(done, _name(step.ours, match), permuted(stored, axes), [names[name]])
        elif isinstance(step, Split):
            pieces = _split(step, stored, names[name], reading=reading)
            for ours, piece in zip(step.ours, pieces, strict=True):
                _put(done, _name(ours, match), piece, [names[name]])
    for (number, stars, rest), found in parts.items():
        step = table.steps[number]
        assert isinstance(step, Join)
        if len(found) < len(step.theirs):  # no whole: the parts that there are fit nothing
            for name in found.values():
                _put(done, name, tensors[name], [names[name]])
        else:
            ordered = {names[found[index]]: tensors[found[index]] for index in sorted(found)}
            whole = _join(step, ordered, reading=reading)
            _put(done, _name(step.ours, _Match(number, 0, stars, rest)), whole, list(ordered))
    return done


def _put(done: Arrangement, name: str, stored: StoredTensor, origins: Sequence[str]) -> None:
    if name in done.tensors and done.tensors[name] is not stored:
        raise RecordError(
            "the layout gives two tensors one name",
            where=name,
            found=" and ".join(map(repr, [*done.origins[name], *origins])),
        )
    done.tensors[name] = stored
    done.origins[name] = tuple(origins)


def _axes(transpose: bool | tuple[int, ...], *, reading: bool) -> tuple[int, ...]:
    """Return the order of the axes in the model, or where not `reading` in the file."""
    if isinstance(transpose, bool):
        return (1, 0) if transpose else ()
    return transpose if reading else tuple(transpose.index(axis) for axis in range(len(transpose)))


def _split(step: Split, whole: StoredTensor, name: str, *, reading: bool) -> list[StoredTensor]:
    axes = _axes(step.transpose, reading=reading)
    arranged = permuted(whole, axes) if reading else whole
    rows = arranged.shape[step.dim] if step.dim < len(arranged.shape) else 0
    count = len(step.ours)
    sizes = step.sizes or (rows // count,) * count
    if step.dim >= len(arranged.shape) or sum(sizes) != rows or any(size % step.groups for size in sizes):
        parts = f"parts of sizes {', '.join(map(str, step.sizes))}" if step.sizes else f"{count} equal parts"
        groups = f", each in {step.groups} groups" if step.groups > 1 else ""
        raise RecordError(
            "a tensor cannot be split as the layout says",
            where=name,
            expected=f"{parts} along axis {step.dim}{groups}",
            found=f"shape {arranged.shape}",
        )
    pieces: list[StoredTensor] = [
        PartOfTensor(
            _resized(arranged, step.dim, size), whole.dtype, (arranged,), sizes, i, step.dim, step.groups
        )
        for i, size in enumerate(sizes)
    ]
    return pieces if reading else [permuted(piece, axes) for piece in pieces]


def _resized(stored: StoredTensor, dim: int, size: int) -> tuple[int, ...]:
    return (*stored.shape[:dim], size, *stored.shape[dim + 1 :])


def _join(step: Join, parts: Mapping[str, StoredTensor], *, reading: bool) -> StoredTensor:
    axes = _axes(step.transpose, reading=reading)
    arranged = [permuted(part, axes) if reading else part for part in parts.values()]
    dim = step.dim
    kinds = {(part.shape[:dim], part.shape[dim + 1 :], part.dtype) for part in arranged}
    rows = [part.shape[dim] if dim < len(part.shape) else -1 for part in arranged]
    if len(kinds) > 1 or -1 in rows or any(size % step.groups for size in rows):
        groups = f", and along it multiples of {step.groups}" if step.groups > 1 else ""
        raise RecordError(
            "tensors cannot be joined as the layout says",
            where=", ".join(parts),
            expected=f"one dtype, and shapes that are equal except along axis {dim}{groups}",
            found=", ".join(f"{part.shape} {part.dtype}" for part in arranged),
        )
    shape = _resized(arranged[0], dim, sum(rows))
    whole = JoinedTensor(shape, arranged[0].dtype, tuple(arranged), dim, step.groups)
    return whole if reading else permuted(whole, axes)


def _plain(step: Step) -> Rename | Join | Split | Drop | Keep:
    return Rename(*step) if isinstance(step, tuple) else step


def _inverse(step: Rename | Join | Split | Drop | Keep) -> _Applied:
    """Return the step from the model's names to the file's."""
    match step:
        case Rename():
            return replace(step, theirs=step.ours, ours=step.theirs)
        case Join():
            return Split(step.ours, step.theirs, step.sizes, step.dim, step.groups, step.transpose)
        case Split():
            return Join(step.ours, step.theirs, step.sizes, step.dim, step.groups, step.transpose)
        case Keep():
            return Drop(step.ours)
        case Drop():
            raise AssertionError("a dropped tensor is not written")


def _check_step(step: Step) -> None:
    """Refuse a step that cannot be applied in both directions."""

    given = step

    def refuse(expected: str, found: object) -> RecordError:
        return RecordError("a step of a layout is wrong", where=repr(given), expected=expected, found=found)

    step = _plain(step)
    patterns = _patterns(getattr(step, "theirs", ())) + _patterns(getattr(step, "ours", ()))
    for pattern in patterns:
        if any("**" in part and part != "**" for part in pattern.split(".")) or pattern.endswith("**"):
            raise refuse("'**' between dots or at the beginning, before other parts", repr(pattern))
    if len({tuple(re.findall(r"\*\*|\*", pattern)) for pattern in patterns}) > 1:
        raise refuse("the same stars in all names, in the same order", ", ".join(map(repr, patterns)))
    if isinstance(step, Join | Split):
        several = step.theirs if isinstance(step, Join) else step.ours
        if len(several) < 2:
            raise refuse("two or more parts", repr(several))
        if step.sizes is not None and len(step.sizes) != len(several):
            raise refuse(f"sizes of {len(several)} parts", step.sizes)
        if step.dim < 0 or step.groups < 1:
            raise refuse("dim from 0 and groups from 1", f"dim={step.dim}, groups={step.groups}")
    if isinstance(step, Rename | Join | Split):
        order = step.transpose
        if not isinstance(order, bool) and sorted(order) != list(range(len(order))):
            raise refuse("True, False or the order of axes, such as (3, 2, 0, 1)", order)


def _patterns(names: str | Iterable[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


@dataclass(frozen=True)
class ArrangedTensor(StoredTensor):
    """A tensor whose values come from other stored tensors."""

    inner: tuple[StoredTensor, ...]

    @property
    def sources(self) -> tuple[StoredTensor, ...]:
        """The tensors of the file that the values come from."""
        return tuple(source for stored in self.inner for source in stored.sources)

    def value(self) -> Tensor:
        """Return the values; of tensors in memory it is a view where a view suffices."""
        raise NotImplementedError

    def read_into(self, out: Tensor) -> None:
        """Copy the values to a tensor."""
        out.copy_(self.value())

    def verify(self, where: str) -> None:
        """Verify each tensor of the file."""
        for source in self.sources:
            source.verify(where)


@dataclass(frozen=True)
class RearrangedTensor(ArrangedTensor):
    """A tensor with its values in another order."""

    rearrange: Callable[[Tensor], Tensor] = field(repr=False)

    def value(self) -> Tensor:
        """Return a view where `rearrange` does."""
        return self.rearrange(value_of(self.inner[0]))


def permuted(stored: StoredTensor, axes: tuple[int, ...]) -> StoredTensor:
    """Return a tensor with its axes in another order; as it is where it has another number of axes."""
    if len(stored.shape) != len(axes):
        return stored
    shape = tuple(stored.shape[axis] for axis in axes)
    return RearrangedTensor(shape, stored.dtype, (stored,), lambda value: value.permute(axes))


@dataclass(frozen=True)
class JoinedTensor(ArrangedTensor):
    """Several tensors along an axis, in `groups` that have a piece of each."""

    dim: int
    groups: int

    def value(self) -> Tensor:
        """Return a new tensor."""
        parts = [_grouped(value_of(part), self.dim, self.groups) for part in self.inner]
        return torch.cat(parts, self.dim + 1).flatten(self.dim, self.dim + 1)

    def read_into(self, out: Tensor) -> None:
        """Read each part to its place."""
        sizes = [part.shape[self.dim] for part in self.inner]
        for part, piece in zip(self.inner, _pieces(out, sizes, self.dim, self.groups), strict=True):
            if self.groups == 1:
                part.read_into(piece.squeeze(self.dim))
            else:
                piece.copy_(_grouped(value_of(part), self.dim, self.groups))


@dataclass(frozen=True)
class PartOfTensor(ArrangedTensor):
    """The part numbered `index` of the parts of these sizes along an axis, or of each group of it."""

    sizes: tuple[int, ...]
    index: int
    dim: int
    groups: int

    def value(self) -> Tensor:
        """Return a view where there are no groups."""
        pieces = _pieces(value_of(self.inner[0]), self.sizes, self.dim, self.groups)
        return pieces[self.index].flatten(self.dim, self.dim + 1)

    def read_into(self, out: Tensor) -> None:
        """Read only the rows where they lie together, else the whole tensor."""
        if self.dim == 0 and self.groups == 1:
            self.inner[0].read_rows_into(sum(self.sizes[: self.index]), out)
        else:
            out.copy_(self.value())


def value_of(stored: StoredTensor) -> Tensor:
    """Return the values of a stored tensor, without a copy where they are in memory."""
    if isinstance(stored, MemoryTensor):
        return stored.tensor
    if isinstance(stored, ArrangedTensor):
        return stored.value()
    return stored.read()


def _grouped(tensor: Tensor, dim: int, groups: int) -> Tensor:
    shape = tensor.shape
    return tensor.view(*shape[:dim], groups, shape[dim] // groups, *shape[dim + 1 :])


def _pieces(whole: Tensor, sizes: Sequence[int], dim: int, groups: int) -> Sequence[Tensor]:
    """Return the parts ``[..., groups, size // groups, ...]``, which share the memory of the whole."""
    return torch.split(_grouped(whole, dim, groups), [size // groups for size in sizes], dim + 1)


WRAPPERS = {
    "_orig_mod": "torch.compile",
    "_fsdp_wrapped_module": "FullyShardedDataParallel",
    "_checkpoint_wrapped_module": "activation checkpointing",
}
"""The names that wrappers add to the paths of the modules that they wrap, and which of them does."""


def without_wrappers(path: str) -> str:
    """Return a path without the names that torch.compile and other wrappers add.

    >>> without_wrappers("encoder._orig_mod.weight")
    'encoder.weight'
    """
    return ".".join(name for name in path.split(".") if name not in WRAPPERS)
