"""Counters and histograms that cost a dictionary update; a scrape makes prometheus_client families of them.

The library's own Counter and Histogram take a lock and walk their buckets on every observation; these are
written from the event loop alone, once or more per request.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

Labels = tuple[str, ...]


class Tally:
    """A counter by label values. `name` ends in `_total` at the scrape."""

    __slots__ = ("_doc", "_labels", "_name", "values")

    def __init__(self, name: str, doc: str, *, labels: Labels = ()) -> None:
        self._name = name
        self._doc = doc
        self._labels = labels
        self.values: dict[Labels, float] = {}

    def add(self, labels: Labels, amount: float = 1) -> None:
        self.values[labels] = self.values.get(labels, 0) + amount

    def family(self) -> CounterMetricFamily:
        family = CounterMetricFamily(self._name, self._doc, labels=self._labels)
        for labels, value in sorted(self.values.items()):
            family.add_metric(labels, value)
        return family


class _Buckets:
    __slots__ = ("counts", "total")

    def __init__(self, size: int) -> None:
        self.counts = [0] * size
        self.total = 0.0


class Times:
    """A histogram of seconds by label values. `bounds`: upper ends in seconds, ascending."""

    __slots__ = ("_bounds", "_doc", "_labels", "_name", "_series")

    def __init__(self, name: str, doc: str, *, bounds: Sequence[float], labels: Labels = ()) -> None:
        self._name = name
        self._doc = doc
        self._bounds = tuple(bounds)
        self._labels = labels
        self._series: dict[Labels, _Buckets] = {}

    def observe(self, seconds: float, labels: Labels = ()) -> None:
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = _Buckets(len(self._bounds) + 1)
        series.counts[bisect_left(self._bounds, seconds)] += 1
        series.total += seconds

    def family(self) -> HistogramMetricFamily:
        family = HistogramMetricFamily(self._name, self._doc, labels=self._labels)
        for labels, series in sorted(self._series.items()):
            family.add_metric(labels, list(self._cumulative(series)), series.total)
        return family

    def _cumulative(self, series: _Buckets) -> Iterator[tuple[str, float]]:
        below = 0
        for bound, count in zip((*self._bounds, float("inf")), series.counts, strict=True):
            below += count
            yield ("+Inf" if bound == float("inf") else repr(bound)), below


def gauge(name: str, value: float, *, doc: str) -> GaugeMetricFamily:
    """One gauge without labels."""
    return GaugeMetricFamily(name, doc, value=value)


def gauges(name: str, doc: str, *, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    """One gauge by the values of one label."""
    family = GaugeMetricFamily(name, doc, labels=(label,))
    for key, value in sorted(values.items()):
        family.add_metric((key,), value)
    return family
