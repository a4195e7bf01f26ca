"""How float32 is multiplied where matrices are, by kernels of burnt's and by torch's own: one setting.

=========== ============================================== ====================================
name        factors                                        torch's own calls
=========== ============================================== ====================================
``ieee``    float32, on units that every device has        ``"highest"``
``tf32x3``  each as a sum of two of 11 bits; three of the  ``"highest"``
            four products are added: nearly float32, on
            tensor cores
``tf32``    11 bits of precision                           ``"high"``
``flex32``  bfloat16, 8 bits of precision                  ``"medium"``
=========== ============================================== ====================================

Sums are float32 in all of them, as is what lies in memory. float16 may be multiplied as bfloat16 with
``flex32`` alone. ROCm's compiler knows ``tf32`` on gfx942 alone and
``tf32x3`` nowhere; there float32 is multiplied as it is, for which CDNA has units.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from burnt import _torch
from burnt.device import device_info
from burnt.errors import InputValueError

__all__ = ["dot_precision", "multiplying", "precision", "rounding", "set_precision"]

_TORCHS = {"ieee": "highest", "tf32x3": "highest", "tf32": "high", "flex32": "medium"}
_OURS = {"highest": "ieee", "high": "tf32", "medium": "flex32"}
_BITS = {"tf32": 11, "flex32": 8}
is_tf32x3 = False
"""Whether the setting is ``tf32x3``, which torch does not know."""


def precision() -> str:
    """How float32 is multiplied: the name that was set, or what torch's setting for products corresponds to.

    >>> precision()
    'ieee'
    """
    try:
        plain = _OURS[_torch.product_precision()]
    except RuntimeError:  # set by torch's newer switches, beside which the older one is refused
        plain = _torch.matmul_precision()
    return "tf32x3" if is_tf32x3 and plain == "ieee" else plain


def set_precision(name: str) -> None:
    """Set how float32 is multiplied in this process; torch's settings, for products and of cuDNN, go along.

    Args:
        name: ``"ieee"``, ``"tf32x3"``, ``"tf32"`` or ``"flex32"``.

    Raises:
        InputValueError: of another name.

    The same as `torch.set_float32_matmul_precision`, which is looked at, too, but for ``tf32x3``. Unless this
    is called, cuDNN's convolutions are as torch has them: in tf32.
    """
    global is_tf32x3
    if name not in _TORCHS:
        raise InputValueError(
            f"no precision is named {name!r}",
            where="burnt.kernels.set_precision",
            expected=" or ".join(map(repr, _TORCHS)),
            found=name,
        )
    torch.set_float32_matmul_precision(_TORCHS[name])
    _torch.let_convolve_in_tf32(_TORCHS[name] != "highest")
    is_tf32x3 = name == "tf32x3"


@contextlib.contextmanager
def multiplying(name: str) -> Iterator[None]:
    """A context in which float32 is multiplied as `set_precision` says, in all threads of the process.

    Raises:
        InputValueError: of another name.

    >>> with multiplying("tf32x3"):
    ...     precision()
    'tf32x3'
    """
    before, convolutions = precision(), _torch.convolves_in_tf32()
    set_precision(name)
    try:
        yield
    finally:
        set_precision(before)
        _torch.let_convolve_in_tf32(convolutions)


def dot_precision(name: str) -> str:
    """What a kernel of Triton's is told, on the devices of this process, so that its compiler takes it."""
    architecture = _rocm()
    if architecture is None or name in ("ieee", "flex32"):
        return name
    return name if name == "tf32" and architecture.startswith("gfx942") else "ieee"


def _rocm() -> str | None:
    """The architecture of ROCm's device, or None."""
    return None if torch.version.hip is None else device_info("cuda").architecture


def rounding(dtype: torch.dtype) -> float:
    """How far the next larger number is from 1, among those that products of a dtype take."""
    eps = torch.finfo(dtype).eps
    return max(eps, 2.0 ** (1 - _BITS.get(precision(), 24))) if dtype == torch.float32 else eps
