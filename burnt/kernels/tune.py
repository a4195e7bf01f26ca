"""Measuring candidates."""

from __future__ import annotations
from typing import Any


def measured(op: Any, args: Any, key: str, able: Any) -> Any:
    return None
