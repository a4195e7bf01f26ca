"""Format numbers and durations for people."""

from __future__ import annotations

from collections.abc import Mapping


def value_text(value: float) -> str:
    """Format a metric value: ``0.1234``, or ``1.23e-05`` where that is shorter."""
    return f"{value:.4f}" if 1e-3 <= abs(value) < 1e4 or value == 0 else f"{value:.3g}"


def values_text(values: Mapping[str, float]) -> str:
    """Format several metric values on one line."""
    return "  ".join(f"{name} {value_text(value)}" for name, value in values.items())


def duration_text(seconds: float) -> str:
    """Format seconds as ``4.2 s``, ``2:05`` or ``1:02:05``.

    >>> duration_text(4.21), duration_text(125), duration_text(3725)
    ('4.2 s', '2:05', '1:02:05')
    """
    if seconds < 59.95:  # above, it would round to "60.0 s" instead of "1:00"
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
