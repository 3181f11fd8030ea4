# SPDX-License-Identifier: Apache-2.0
"""config/grafana/otel-perfbuf.json asks only for metrics and labels that the agent has, and for all of its metrics."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_perfbuf.service.telemetry import METRICS

DASHBOARD = json.loads((Path(__file__).parents[2] / "config" / "grafana" / "otel-perfbuf.json").read_text())
SCRAPED = ("instance", "job")  # labels that Prometheus adds


def queries() -> Iterator[str]:
    """Every query of every panel, and the variables'."""
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel.get("targets", []))
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


def names_of(query: str) -> set[str]:
    """The metrics that a query names: words that are no functions, keywords, labels or durations."""
    bare = re.sub(r"\{[^}]*\}|\[[^]]*\]|by \([^)]*\)", " ", query)
    words = re.findall(r"\b[a-z_]+\b(?!\s*\()", re.sub(r"label_values\((\w+), *\w+\)", r"\1", bare))
    return {word for word in words if word not in ("sum", "min", "max", "by")}


def known(name: str) -> tuple[str, ...]:
    """A name's labels; KeyError when there is no such metric."""
    if name in METRICS and METRICS[name].kind != "summary":
        return METRICS[name].labels
    base = re.sub(r"_(sum|count)$", "", name)
    assert METRICS[base].kind == "summary" and base != name, name
    return METRICS[base].labels


@pytest.mark.parametrize("query", list(queries()))
def test_every_query_names_what_there_is(query: str) -> None:
    """Metrics, the labels it selects and groups by; counters are asked for as rates, gauges as they are."""
    names = names_of(query)
    assert names
    labels = {label for name in names for label in known(name)} | set(SCRAPED)
    used = set(re.findall(r"(\w+)(?:=~|=)", query))
    used |= {word for group in re.findall(r"by \(([^)]*)\)", query) for word in re.findall(r"\w+", group)}
    assert used <= labels, used - labels
    for name in names:
        gauge = name in METRICS and METRICS[name].kind == "gauge"
        asked = re.search(rf"(?:rate|increase)\({name}\b", query) is not None
        assert asked != gauge or query.startswith("label_values"), query


def test_every_metric_is_shown() -> None:
    """None is forgotten when one is added."""
    shown = {re.sub(r"_(sum|count)$", "", name) for query in queries() for name in names_of(query)}
    assert shown == set(METRICS)


def test_legends_use_labels_that_the_query_keeps() -> None:
    """A legend of a label that is summed away would be empty."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            groups = re.findall(r"by \(([^)]*)\)", target["expr"])
            kept: set[str] = set(re.findall(r"\w+", groups[0])) if groups else {"instance", "exporter"}
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= kept, target


def test_panels_do_not_overlap() -> None:
    """Each has a place of its own on the grid of 24 columns, and an id."""
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at: dict[str, Any] = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
