"""QuantScheme: what a quantized tensor is. Values, granularity, scales; no arithmetic lives here.

Kernels take its parts as arguments, records store it as JSON, and `burnt.quant` finds scales for it. This
module does not import torch.
"""

from __future__ import annotations

import dataclasses
import math
import re
import types
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from burnt.errors import ConfigError, did_you_mean, nearest


class ValueType(NamedTuple):
    """How one quantized value is stored: a float or an integer code, from the smallest to the largest."""

    name: str
    bits: int
    smallest: float
    largest: float
    is_float: bool

    @property
    def per_byte(self) -> int:
        """Values in one byte."""
        return 8 // self.bits


VALUES: Mapping[str, ValueType] = types.MappingProxyType(
    {
        value.name: value
        for value in (
            ValueType("int8", 8, -128, 127, False),
            ValueType("int4", 4, -8, 7, False),
            ValueType("int2", 2, -2, 1, False),
            ValueType("float8_e4m3", 8, -448, 448, True),
            ValueType("float8_e5m2", 8, -57344, 57344, True),
            ValueType("float4_e2m1", 4, -6, 6, True),
        )
    }
)
"""The types of values by name. float8_e4m3 is the variant without infinities, as torch.float8_e4m3fn."""

# Names of values: torch's and torchao's, those of the ONNX and OCP formats, and Burn's. Burn's ``S`` is the
# range without the most negative code, which is symmetric around zero; ``F`` the full range.
_VALUE_NAMES: dict[str, tuple[str, bool]] = {
    **{name: (name, False) for name in VALUES},
    "fp8": ("float8_e4m3", False),
    "float8": ("float8_e4m3", False),
    "float8_e4m3fn": ("float8_e4m3", False),
    "e4m3": ("float8_e4m3", False),
    "e5m2": ("float8_e5m2", False),
    "fp4": ("float4_e2m1", False),
    "float4": ("float4_e2m1", False),
    "float4_e2m1fn": ("float4_e2m1", False),
    "float4_e2m1fn_x2": ("float4_e2m1", False),
    "e2m1": ("float4_e2m1", False),
    "qint8": ("int8", False),
    **{f"q{bits}f": (f"int{bits}", False) for bits in (8, 4, 2)},
    **{f"q{bits}s": (f"int{bits}", True) for bits in (8, 4, 2)},
}

_SCALES = ("float32", "float16", "bfloat16")
_ALIASES = {
    "int8wo": "int8",
    "int8-weight-only": "int8",
    "int8dq": "int8-dynamic",
    "int4wo": "int4-block32",
    "int4": "int4-block32",
    "int2": "int2-block32",
    "fp8wo": "fp8",
    "fp8dq": "fp8-dynamic",
    "fp4": "fp4-block32",
}

NAMES = (
    "int8",
    "int8-dynamic",
    "int8-static",
    "int4-block32",
    "int2-block32",
    "fp8",
    "fp8-dynamic",
    "fp4-block32",
)
"""Common names that `QuantScheme.parse` takes; the parts can be combined in other ways."""

_SUFFIXES = (
    "tensor, channel, block<size>, asymmetric, narrow, dynamic, dynamic_tensor, static, float16, bfloat16, "
    "float32, refuse"
)


@dataclasses.dataclass(frozen=True)
class QuantScheme:
    """What a quantized weight is, and whether the layer's inputs are quantized too.

    A weight is seen as a matrix ``[rows, columns]``: a row for each output channel (or embedding), whose
    columns are all other axes. A value ``v`` stands for ``(v - zero_point) * scale``.

    Args:
        value: a key of `VALUES`: ``"int8"``, ``"int4"``, ``"int2"``, ``"float8_e4m3"``, ``"float8_e5m2"`` or
            ``"float4_e2m1"``.
        level: what has a scale of its own: the whole ``"tensor"``, a ``"channel"`` (row), or a ``"block"`` of
            adjacent columns in a row.
        block: columns per block, an even number and for int2 a multiple of 4; only with the level
            ``"block"``.
        symmetric: without zero points. Floats always are.
        narrow: integers leave out the most negative code, so that the range is symmetric (Burn's ``S``).
        scale: dtype of the scales: ``"float32"``, ``"float16"`` or ``"bfloat16"``.
        activations: None if only weights are quantized; ``"dynamic"``: inputs too, with a scale per row of
            each call; ``"dynamic_tensor"``: with one scale and zero point for the whole input of a call, for
            integers (ONNX's DynamicQuantizeLinear); ``"static"``: with one scale found by calibration.
        uneven: rows that are not a multiple of the block are padded with zeros (``"pad"``), or the layer is
            skipped with that reason (``"refuse"``).

    Raises:
        ConfigError: an argument has no such value, or two exclude each other.

    >>> QuantScheme.parse("int4-block32")
    QuantScheme('int4-block32')
    >>> QuantScheme("int8", symmetric=False).name
    'int8-asymmetric'
    """

    value: str = "int8"
    level: Literal["tensor", "channel", "block"] = "channel"
    block: int | None = None
    symmetric: bool = True
    narrow: bool = False
    scale: str = "float32"
    activations: Literal["dynamic", "dynamic_tensor", "static"] | None = None
    uneven: Literal["pad", "refuse"] = "pad"

    def __post_init__(self) -> None:
        known = _VALUE_NAMES.get(str(self.value).lower())
        if known is None:
            raise _error("value", f"one of {', '.join(VALUES)}", self.value, list(_VALUE_NAMES))
        object.__setattr__(self, "value", known[0])
        if known[1]:
            object.__setattr__(self, "narrow", True)
        choices: list[tuple[str, tuple[object, ...]]] = [
            ("level", ("tensor", "channel", "block")),
            ("scale", _SCALES),
            ("activations", (None, "dynamic", "dynamic_tensor", "static")),
            ("uneven", ("pad", "refuse")),
        ]
        for name, allowed in choices:
            if getattr(self, name) not in allowed:
                expected = ", ".join("None" if a is None else repr(a) for a in allowed)
                raise _error(name, expected, getattr(self, name), [a for a in allowed if isinstance(a, str)])
        if (self.block is None) == (self.level == "block"):
            raise _error("block", "a size with the level 'block', None with others", self.block)
        multiple = max(2, self.type.per_byte)
        if self.block is not None and (
            type(self.block) is not int or self.block < multiple or self.block % multiple
        ):
            raise _error("block", f"a multiple of {multiple} columns for {self.value}", self.block)
        if self.type.is_float and not self.symmetric:
            raise _error("symmetric", f"True, since {self.value} has a sign and no zero point", False)
        if self.type.is_float and self.activations == "dynamic_tensor":
            raise _error(
                "activations", f"dynamic or static, since {self.value} has no zero point", "dynamic_tensor"
            )
        if self.type.is_float and self.narrow:
            raise _error("narrow", f"False: {self.value} is symmetric as it is", True)

    @property
    def type(self) -> ValueType:
        """How a value is stored."""
        return VALUES[self.value]

    @property
    def smallest(self) -> float:
        """The most negative value in use."""
        return self.type.smallest + self.narrow

    @property
    def largest(self) -> float:
        """The largest value."""
        return self.type.largest

    @property
    def name(self) -> str:
        """The scheme as text, which `parse` reads."""
        parts = [{"float8_e4m3": "fp8", "float4_e2m1": "fp4"}.get(self.value, self.value)]
        if self.level == "block":
            parts.append(f"block{self.block}")
        elif self.level == "tensor":
            parts.append("tensor")
        elif self.type.bits < 8:
            parts.append("channel")
        parts += [name for name in ("narrow",) if self.narrow]
        parts += [] if self.symmetric else ["asymmetric"]
        if self.scale != self._default_scale(self.level):
            parts.append(self.scale)
        parts += [self.activations] if self.activations else []
        parts += ["refuse"] if self.uneven == "refuse" else []
        return "-".join(parts)

    def __repr__(self) -> str:
        return f"QuantScheme({self.name!r})"

    @staticmethod
    def _default_scale(level: str) -> str:
        """Scales of blocks have 16 bits: in 32 they would take a fifth of an int4 file with blocks of 32."""
        return "float16" if level == "block" else "float32"

    @classmethod
    def parse(cls, text: str | QuantScheme) -> QuantScheme:
        """Read a scheme's name: a value, then its properties with hyphens between them, in any order.

        ``tensor``, ``channel`` (the default) or ``block<size>``; ``asymmetric``; ``narrow``; ``float32``,
        ``float16`` or ``bfloat16`` scales (float32 by default, float16 for blocks); ``dynamic``,
        ``dynamic_tensor`` or ``static`` activations; ``refuse`` for rows that blocks do not divide. Short
        names: ``int4`` and ``int2`` have blocks of 32, torchao's ``int8wo``, ``int8dq``, ``int4wo``,
        ``fp8wo`` and ``fp8dq`` are known.

        Raises:
            ConfigError: there is no such scheme.

        >>> QuantScheme.parse("Q4S-block64-bfloat16")
        QuantScheme('int4-block64-narrow-bfloat16')
        """
        if isinstance(text, QuantScheme):
            return text
        if not isinstance(text, str):
            raise ConfigError(
                "this is not a quantization scheme",
                expected=f"a QuantScheme, or a name such as {', '.join(map(repr, NAMES[:4]))}",
                found=repr(text),
            )
        lowered = text.strip().lower().replace("_weight_only", "wo")
        value, *properties = _ALIASES.get(lowered, lowered).replace("weight-only", "").strip("-").split("-")
        if value not in _VALUE_NAMES:
            raise _unknown(text, value, [*NAMES, *_VALUE_NAMES])
        settings: dict[str, Any] = {"value": value}

        def set_once(name: str, found: object) -> None:
            if name in settings:
                raise ConfigError(
                    f"the scheme {text!r} says {name} twice",
                    expected="each property once",
                    found=f"{settings[name]!r} and {found!r}",
                )
            settings[name] = found

        for part in properties:
            if match := re.fullmatch(r"block(\d+)", part):
                set_once("level", "block")
                settings["block"] = int(match[1])
            elif part in ("tensor", "channel"):
                set_once("level", part)
            elif part in ("dynamic", "dynamic_tensor", "static"):
                set_once("activations", part)
            elif part in _SCALES:
                set_once("scale", part)
            elif part in ("asymmetric", "symmetric"):
                set_once("symmetric", part == "symmetric")
            elif part == "narrow":
                set_once("narrow", True)
            elif part in ("pad", "refuse"):
                set_once("uneven", part)
            else:
                raise _unknown(text, part, _SUFFIXES.replace("<size>", "32").split(", "))
        settings.setdefault("scale", cls._default_scale(settings.get("level", "channel")))
        return cls(**settings)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> QuantScheme:
        """Read what `to_dict` returned.

        Raises:
            ConfigError: a field is unknown or has no such value.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        for name in data:
            if name not in known:
                raise _error(name, f"one of {', '.join(sorted(known))}", name, sorted(known))
        return cls(**data)

    def blocks(self, columns: int) -> int:
        """Return how many scales a row of so many columns has, 1 without blocks."""
        return 1 if self.block is None else math.ceil(columns / self.block)

    def padded_columns(self, columns: int) -> int:
        """Return the columns that are stored: a multiple of the block, or of the values in a byte."""
        multiple = self.type.per_byte if self.block is None else self.block
        return math.ceil(columns / multiple) * multiple

    def scale_shape(self, rows: int, columns: int) -> tuple[int, int]:
        """Return the shape of the scales of a matrix ``[rows, columns]``."""
        return (1, 1) if self.level == "tensor" else (rows, self.blocks(columns))

    def num_bytes(self, rows: int, columns: int) -> int:
        """Return the bytes of a quantized matrix: values, scales and zero points."""
        scales = math.prod(self.scale_shape(rows, columns))
        scale_bytes = 4 if self.scale == "float32" else 2
        values = rows * self.padded_columns(columns) // self.type.per_byte
        return values + scales * (scale_bytes + (not self.symmetric))


def _error(name: str, expected: str, found: object, words: list[str] | None = None) -> ConfigError:
    close = nearest(str(found).lower(), words) if words else None
    return ConfigError(
        f"{name}= of a quantization scheme is not valid",
        where=f"QuantScheme.{name}",
        expected=expected,
        found=repr(found),
        hint=f"did you mean {close!r}?" if close and close != found else None,
    )


def _unknown(text: str, part: str, words: list[str]) -> ConfigError:
    return ConfigError(
        f"there is no quantization scheme {text!r}",
        expected=f"a name such as {', '.join(NAMES)}; or a value of {', '.join(VALUES)} "
        f"with any of {_SUFFIXES}",
        found=repr(part),
        hint=did_you_mean(part, words),
    )
