# SPDX-License-Identifier: Apache-2.0
"""A configuration: files and settings in, checked components and pipelines out, or all faults at once.

What it is not: it opens nothing but the files it is given (and `${file:}`). Source: CONTRACT section 2.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import yaml
from pydantic import BaseModel, SecretStr

from otel_perfbuf.service.graph import check_graph
from otel_perfbuf.service.model import Component, Configuration, PipelineOptions, ServiceOptions
from otel_perfbuf.service.problems import Problems, is_secret
from otel_perfbuf.service.registry import REGISTRY, SECTIONS, Section
from otel_perfbuf.service.sources import read_sources
from otel_perfbuf.service.values import expand

__all__ = ["load", "parse", "render"]

REDACTED: Final = "[REDACTED]"
_TOP: Final = (*SECTIONS, "service")
_USER = re.compile(r"(://)[^/@\s]+@")  # http://user:password@host
_PATTERNS = (".redact.pattern", ".redact.replace")  # are no URLs, whatever they look like
_ID = re.compile(r"([a-z][a-z0-9_]*)(?:/([A-Za-z0-9_-]+))?")


def load(files: Iterable[str], sets: Iterable[str] = (), environment: Mapping[str, str] = os.environ) -> Configuration:
    """The checked configuration of ``files``, merged in order, then ``sets`` ("a.b=c").

    Raises ConfigError with all problems found, each with its key path.
    """
    problems = Problems()
    tree, whole = read_sources(files, sets, problems)
    if not whole:
        problems.check()  # keys of a file that could not be read would only seem to be missing
    return parse(expand(tree, problems, environment), problems)


def parse(tree: Mapping[str, Any], problems: Problems | None = None) -> Configuration:
    """The checked configuration of a tree whose values are expanded; raises ConfigError with all problems."""
    problems = problems or Problems()
    for key in tree:
        if key == "processors":
            problems.add(key, "there are no processors here; put a Collector behind this agent for them")
        elif key not in _TOP:
            problems.add(key, f"there is no such key; known here: {', '.join(_TOP)}")
    sections = {section: _section(section, tree.get(section), problems) for section in SECTIONS}
    service = _service(tree.get("service"), problems)
    # What has not even the right form has a sentence already; its use in a pipeline is not a second fault.
    named = {section: set(_map(tree.get(section))) for section in SECTIONS}
    configuration = Configuration(**sections, service=service)
    check_graph(configuration, named, problems)
    problems.check()
    return configuration


def _service(value: Any, problems: Problems) -> ServiceOptions:
    """Part by part, so that one fault does not hide the others."""
    if value is not None and not isinstance(value, dict):
        problems.add("service", "a map of keys belongs here")
    given = {key: inner for key, inner in _map(value).items() if inner is not None}
    pipelines = given.pop("pipelines", {})
    if not isinstance(pipelines, dict):
        problems.add("service.pipelines", "a map from pipeline ids to pipelines belongs here")
    checked = {
        name: problems.validate(PipelineOptions, options, f"service.pipelines.{name}")
        for name, options in _map(pipelines).items()
    }
    service = problems.validate(ServiceOptions, given, "service") or ServiceOptions()
    good = {name: options for name, options in checked.items() if options is not None}
    if not checked:
        problems.add("service.pipelines", "there is no pipeline, so nothing would be done; add one like logs/dumps")
    return service.model_copy(update={"pipelines": good})


def _section(section: Section, value: Any, problems: Problems) -> dict[str, Component]:
    found: dict[str, Component] = {}
    if value is not None and not isinstance(value, dict):
        problems.add(section, "a map from component ids to options belongs here")
    for component_id, options in _map(value).items():
        path = f"{section}.{component_id}"
        parts = _ID.fullmatch(component_id)
        if parts is None:
            problems.add(path, "a component id is type or type/name, in lower_snake_case")
            continue
        kind = REGISTRY[section].get(parts[1])
        if kind is None:
            known = ", ".join(name for name, known in REGISTRY[section].items() if known.available)
            problems.add(path, f"there is no {section[:-1]} type {parts[1]}; there are: {known}")
            continue
        model = problems.validate(kind.options(), options, path)
        if model is None:
            continue
        unavailable = getattr(model, "unavailable", None)
        for key, sentence in unavailable() if unavailable is not None else ():
            problems.add(f"{path}.{key}" if key else path, sentence)
        found[component_id] = Component(component_id, parts[1], model)
    return found


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def render(configuration: Configuration) -> str:
    """The effective configuration as YAML that can be loaded again, but for secrets: they are "[REDACTED]"."""
    tree: dict[str, Any] = {}
    for section in SECTIONS:
        components = configuration.section(section)
        if components:
            tree[section] = {
                name: _shown(component.options, f"{section}.{name}") for name, component in components.items()
            }
    tree["service"] = _shown(configuration.service, "service")
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=120)


def _shown(options: BaseModel, path: str) -> Any:
    return _redacted(options.model_dump(mode="json", exclude_none=True), options.model_dump(exclude_none=True), path)


def _redacted(value: Any, typed: Any, path: str) -> Any:
    """``value`` without secrets: what ``typed``, the same before it became JSON, has as a secret, or its key names."""
    if isinstance(typed, SecretStr):
        return REDACTED if typed.get_secret_value() else ""
    if isinstance(value, dict):
        kinds = typed if isinstance(typed, dict) else {}
        return {key: _redacted(inner, kinds.get(key), f"{path}.{key}") for key, inner in value.items()}
    if isinstance(value, list):
        items = typed if isinstance(typed, (list, tuple)) else [None] * len(value)
        return [_redacted(inner, item, path) for inner, item in zip(value, items, strict=True)]
    if not isinstance(value, str) or not value or path.endswith(_PATTERNS):
        return value
    return REDACTED if is_secret(path) else _USER.sub(rf"\1{REDACTED}@", value)
