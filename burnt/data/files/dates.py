"""Dates and times as numbers: days since 1970-01-01, and parts such as the month."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

DATE_PARTS = ("year", "month", "day", "weekday", "hour")
"""What ``"joined.month"`` may name of a column of dates; Monday is weekday 0."""

_EPOCH = datetime(1970, 1, 1)
_DAY = timedelta(days=1)


@dataclass(frozen=True)
class Date:
    """Dates with or without a time of day, which become float32; a time zone is converted to UTC.

    `format` is one of ``datetime.strptime``, or None for ISO 8601. `part` is one of `DATE_PARTS`, or None for
    the days since 1970-01-01, with the time of day as a fraction.
    """

    format: str | None = None
    part: str | None = None

    def __str__(self) -> str:
        return f"a date such as {datetime(2024, 1, 31).strftime(self.format or '%Y-%m-%d')}"

    def number(self, value: Any) -> float | None:
        """Return a text or date as a number, and NaN as it is; None for anything else."""
        if isinstance(value, float) and value != value:
            return value
        moment = self._moment(value)
        if moment is None:
            return None
        if self.part is None:
            return (moment - _EPOCH) / _DAY
        found = getattr(moment, self.part)
        return float(found() if callable(found) else found)

    def _moment(self, value: Any) -> datetime | None:
        if isinstance(value, str):
            text = value.strip()
            try:
                value = datetime.strptime(text, self.format) if self.format else datetime.fromisoformat(text)
            except ValueError:
                return None
        if isinstance(value, datetime):
            return value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        return datetime(value.year, value.month, value.day) if isinstance(value, date) else None
