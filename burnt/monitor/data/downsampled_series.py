"""`DownsampledSeries`: one metric series in a bounded number of buckets, extended as new points arrive.

A plot of a million points reads a few thousand buckets once, and after that only the new points.
"""

from __future__ import annotations

import operator

from burnt.store import Point, Points, RunReader, Series
from burnt.store.pyramid import Bucket, single
from burnt.store.reader import group, marked_points, mean_points

# Merged to this many at twice the number. A braille plot 200 cells wide has 400 columns of dots.
_MIN_BUCKETS = 512
_PAGE_POINTS = 20_000


class DownsampledSeries:
    """A series as at most 1,024 buckets, which keep its first and last point and its extremes.

    >>> import tempfile
    >>> from burnt.store import RunWriter
    >>> folder = tempfile.mkdtemp()
    >>> run = RunWriter.create(folder)
    >>> run.log(1, 1, {"loss": 0.5})
    >>> run.flush()
    True
    >>> trace = DownsampledSeries(Series("loss", "train"))
    >>> with RunReader(folder) as reader:
    ...     trace.refresh(reader)
    ...     run.log(2, 1, {"loss": 0.25})
    ...     run.close("finished")
    ...     trace.refresh(reader)
    >>> trace.points().values
    [0.5, 0.25]
    """

    def __init__(self, series: Series) -> None:
        self.series = series
        self._buckets: list[Bucket] = []
        self._bucket_points = 0
        self._first: Point | None = None
        self._last: Point | None = None
        self._attempt = 0
        self._num_read = 0
        self._points: Points | None = None
        self._means: Points | None = None
        self._final_points = Points([], [], [])  # of buckets that no longer change
        self._num_final_buckets = 0

    def refresh(self, reader: RunReader) -> None:
        """Read the new points; the first time and after a resume, read the whole series."""
        if self._attempt == 0 or reader.newest_attempt() != self._attempt:
            outline = reader.outline(*self.series, _MIN_BUCKETS)
            self._buckets = outline.buckets
            self._bucket_points = max((bucket.points for bucket in self._buckets), default=1)
            self._first, self._last = outline.first, outline.last
            self._attempt, self._num_read = outline.attempt, outline.written
            self._clear_points()
            return
        while new_points := reader.raw_points(*self.series, self._attempt, self._num_read, _PAGE_POINTS):
            self._points = self._means = None
            for position, point in new_points:
                self._append(point)
                self._num_read = position + 1
            if len(new_points) < _PAGE_POINTS:
                break

    def _append(self, point: Point) -> None:
        self._first = self._first or point
        self._last = point
        bucket = single(point.step, point.time, point.value)
        if self._buckets and self._buckets[-1].points < self._bucket_points:
            self._buckets[-1:] = group([self._buckets[-1], bucket], 1)
            return
        self._buckets.append(bucket)
        if len(self._buckets) >= 2 * _MIN_BUCKETS:
            self._buckets = group(self._buckets, _MIN_BUCKETS)
            self._bucket_points = max(bucket.points for bucket in self._buckets)
            self._clear_points()

    def _clear_points(self) -> None:
        self._points = self._means = None
        self._final_points, self._num_final_buckets = Points([], [], []), 0

    def points(self) -> Points:
        """Return the first and last point, and each bucket's lowest, highest and first non-finite value."""
        if self._points is None:
            # Only the last bucket still changes; reuse the points of the others.
            if len(self._buckets) - 1 > self._num_final_buckets:
                first = None if self._num_final_buckets else self._first
                new_points = marked_points(self._buckets[self._num_final_buckets : -1], first, None)
                self._final_points = _concatenate(self._final_points, new_points)
                self._num_final_buckets = len(self._buckets) - 1
            first = None if self._num_final_buckets else self._first
            tail = marked_points(self._buckets[-1:], first, self._last)
            self._points = _concatenate(self._final_points, tail)
            if any(map(operator.gt, self._points.steps, self._points.steps[1:])):
                # The steps were not logged in ascending order.
                self._points = marked_points(self._buckets, self._first, self._last)
        return self._points

    def means(self) -> Points:
        """Return the mean of the finite values of every bucket, the input of smoothed curves."""
        if self._means is None:
            self._means = mean_points(self._buckets)
        return self._means


def _concatenate(left: Points, right: Points) -> Points:
    return Points(left.steps + right.steps, left.times + right.times, left.values + right.values)
