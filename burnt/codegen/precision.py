"""The precision of float32 matmuls and convolutions: one setting for burnt's kernels and torch's.

=========== ============================================== ====================================
name        operands                                       torch.set_float32_matmul_precision
=========== ============================================== ====================================
``ieee``    float32, on units that every device has        ``"highest"``
``tf32x3``  each as a sum of two numbers of 11 bits; three ``"highest"``
            of the four products are added: nearly
            float32, on tensor cores
``tf32``    11 bits of precision                           ``"high"``
``flex32``  bfloat16, 8 bits of precision                  ``"medium"``
=========== ============================================== ====================================

Accumulation and storage are float32 in all of them. float16 may be multiplied as bfloat16 with ``flex32``
only. ROCm's compiler supports ``tf32`` on gfx942 only and ``tf32x3`` nowhere; elsewhere float32 is multiplied
as it is, for which CDNA has units.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from burnt import _torch
from burnt.device import device_info
from burnt.errors import InputValueError

_TORCH_NAMES = {"ieee": "highest", "tf32x3": "highest", "tf32": "high", "flex32": "medium"}
_NAMES = {"highest": "ieee", "high": "tf32", "medium": "flex32"}
_BITS = {"tf32": 11, "flex32": 8}
is_tf32x3 = False
"""Whether ``tf32x3`` is set, which torch has no setting for."""


def precision() -> str:
    """Return the precision of float32 matmuls: the name that was set, here or by torch's own setting.

    >>> precision()
    'ieee'
    """
    try:
        name = _NAMES[_torch.float32_matmul_precision()]
    except RuntimeError:  # set by torch's newer settings, after which reading the older one raises
        name = _torch.matmul_precision()
    return "tf32x3" if is_tf32x3 and name == "ieee" else name


def set_precision(name: str) -> None:
    """Set the precision of float32 matmuls and convolutions in this process, for torch and cuDNN, too.

    Args:
        name: ``"ieee"``, ``"tf32x3"``, ``"tf32"`` or ``"flex32"``.

    Raises:
        InputValueError: any other name.

    Calling `torch.set_float32_matmul_precision` has the same effect on matmuls, except that it does not know
    ``tf32x3``. Unless this function is called, cuDNN's convolutions use torch's default, tf32.
    """
    global is_tf32x3
    if name not in _TORCH_NAMES:
        raise InputValueError(
            f"there is no precision {name!r}",
            where="burnt.kernels.set_precision",
            expected=" or ".join(map(repr, _TORCH_NAMES)),
            found=name,
        )
    torch.set_float32_matmul_precision(_TORCH_NAMES[name])
    _torch.let_convolve_in_tf32(_TORCH_NAMES[name] != "highest")
    is_tf32x3 = name == "tf32x3"


@contextlib.contextmanager
def multiplying(name: str) -> Iterator[None]:
    """Context manager that sets the precision of float32 matmuls, for all threads of the process.

    Args:
        name: the precision, as for `set_precision`.

    Raises:
        InputValueError: any other name.

    >>> with multiplying("tf32x3"):
    ...     precision()
    'tf32x3'
    """
    precision_before, settings_before = precision(), _torch.fp32_settings()
    allowed_tf32_before = _torch.convolves_in_tf32()
    set_precision(name)
    try:
        yield
    finally:
        set_precision(precision_before)
        if allowed_tf32_before is not None:  # torch keeps the older setting next to the newer ones
            _torch.let_convolve_in_tf32(allowed_tf32_before)
        if _torch.fp32_settings() != settings_before:
            _torch.restore_fp32_settings(settings_before)


def dot_precision(name: str) -> str:
    """Return the `input_precision` for Triton's `tl.dot` that the compiler supports on this device."""
    architecture = _rocm_architecture()
    if architecture is None or name in ("ieee", "flex32"):
        return name
    return name if name == "tf32" and architecture.startswith("gfx942") else "ieee"


def _rocm_architecture() -> str | None:
    """Return the architecture of the ROCm device, such as ``gfx942``; None without ROCm."""
    return None if torch.version.hip is None else device_info("cuda").architecture


def matmul_eps(dtype: torch.dtype) -> float:
    """Return the machine epsilon of a matmul's operands at the current precision."""
    eps = torch.finfo(dtype).eps
    return max(eps, 2.0 ** (1 - _BITS.get(precision(), 24))) if dtype == torch.float32 else eps
