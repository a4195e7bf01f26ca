"""Every op by name."""

from __future__ import annotations

from burnt.kernels.interface.op_protocol import AnyOp

OPS: dict[str, AnyOp] = {}
"""Every op by name."""
