"""Numbers and durations as people read them."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["duration_text", "value_text", "values_text"]


def value_text(value: float) -> str:
    """A metric's value as people read it."""
    return f"{value:.4f}" if 1e-3 <= abs(value) < 1e4 or value == 0 else f"{value:.3g}"


def values_text(values: Mapping[str, float]) -> str:
    """Several values on one line."""
    return "  ".join(f"{name} {value_text(value)}" for name, value in values.items())


def duration_text(seconds: float) -> str:
    """Seconds as people read them: ``4.2 s``, ``2:05``, ``1:02:05``.

    >>> duration_text(4.21), duration_text(125), duration_text(3725)
    ('4.2 s', '2:05', '1:02:05')
    """
    if seconds < 59.95:  # what is shown as 60.0 is a minute
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
