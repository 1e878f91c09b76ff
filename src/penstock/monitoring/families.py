"""Samples by the name of their metric, as prometheus-client takes them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


class Families:
    """What is unknown is no sample: zero would be a claim."""

    def __init__(self) -> None:
        self._families: dict[str, Metric] = {}

    def gauge(
        self, name: str, help: str, labels: tuple[str, ...], values: tuple[str, ...], value: Any
    ) -> None:
        self._add(GaugeMetricFamily, name, help, labels, values, value)

    def counter(
        self, name: str, help: str, labels: tuple[str, ...], values: tuple[str, ...], value: Any
    ) -> None:
        self._add(CounterMetricFamily, name, help, labels, values, value)

    def _add(
        self, kind: Any, name: str, help: str, labels: tuple[str, ...], values: tuple[str, ...], value: Any
    ) -> None:
        if name not in self._families:
            self._families[name] = kind(f"penstock_{name}", help, labels=labels)
        if value is not None:
            self._families[name].add_metric(values, float(value))  # type: ignore[attr-defined]

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._families.values())


def timestamp(text: str | None) -> float | None:
    return datetime.fromisoformat(text).timestamp() if text else None
