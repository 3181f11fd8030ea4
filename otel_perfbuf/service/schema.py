# SPDX-License-Identifier: Apache-2.0
"""The JSON Schema of a configuration, for editors; made from the option classes, so that it cannot lag behind them.

What it is not: the check itself. It knows keys, kinds of values and simple bounds; how components are joined, and what
this host can do, only `validate` tells. Source: JSON Schema 2020-12; pydantic's model_json_schema.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel

from otel_perfbuf.service.model import PipelineOptions, ServiceOptions
from otel_perfbuf.service.registry import REGISTRY, SECTIONS

__all__ = ["configuration_schema"]

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_NAME: Final = "(/[A-Za-z0-9_-]+)?$"
_EXPRESSION: Final = {
    "type": "string",
    "pattern": r"\$\{(env|file):[^{}]*\}",
    "description": "${env:NAME}, ${env:NAME:-default} or ${file:PATH}",
}
_LEAVES: Final = frozenset({"type", "enum", "const", "pattern"})


def configuration_schema() -> dict[str, Any]:
    """One schema for a whole configuration file, or for one of several that are merged: nothing is required."""
    definitions: dict[str, Any] = {"expression": _EXPRESSION}
    properties: dict[str, Any] = {}
    for section in SECTIONS:
        known = {
            f"^{name}{_NAME}": _or_nothing(_definition(kind.options(), f"{section}.{name}", definitions))
            for name, kind in REGISTRY[section].items()
            if kind.available
        }
        properties[section] = _or_nothing({"type": "object", "patternProperties": known, "additionalProperties": False})
    service = _definition(ServiceOptions, "service", definitions)
    parts = definitions["service"]["properties"]
    parts["pipelines"] = {
        "type": "object",
        "patternProperties": {"^(logs|traces)(/.*)?$": _definition(PipelineOptions, "pipeline", definitions)},
        "additionalProperties": False,
    }
    for name, part in parts.items():
        parts[name] = _or_nothing(part)
    properties["service"] = _or_nothing(service)
    return {
        "$schema": _DIALECT,
        "title": "otel-perfbuf configuration",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "$defs": definitions,
    }


def _definition(model: type[BaseModel], name: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """Adds the model and those inside it to ``definitions``, under names of their own; a reference to it."""
    # As it would be written: "30s", not 30.0.
    schema = model.model_json_schema(mode="serialization", ref_template=f"#/$defs/{name}.{{model}}")
    inner = schema.pop("$defs", {})
    for key, value in {name: schema, **{f"{name}.{key}": value for key, value in inner.items()}}.items():
        definitions[key] = _written(value)
    return {"$ref": f"#/$defs/{name}"}


def _written(schema: Any, *, value: bool = False) -> Any:
    """The schema of what may be written: any value as an expression too."""
    if isinstance(schema, list):
        return [_written(part, value=value) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {}
    for key, part in schema.items():
        if key == "title":
            continue  # pydantic's, a copy of the key's name
        if key == "properties":
            found[key] = {name: _written(inner, value=True) for name, inner in part.items()}
        elif key in ("items", "anyOf", "oneOf", "prefixItems", "additionalProperties"):
            found[key] = _written(part, value=True)
        elif key == "required":
            continue  # a later file may have it
        else:
            found[key] = part
    if not value:
        return found
    if _LEAVES & set(found) and found.get("type") not in ("null", "object", "array") and not _any_text(found):
        about = {key: found.pop(key) for key in ("default", "description", "examples") if key in found}
        return {"anyOf": [found, {"$ref": "#/$defs/expression"}], **about}
    return found


def _any_text(schema: dict[str, Any]) -> bool:
    kinds = schema.get("type")
    text = kinds == "string" or (isinstance(kinds, list) and "string" in kinds)
    return text and not {"enum", "const", "pattern"} & set(schema)


def _or_nothing(schema: dict[str, Any]) -> dict[str, Any]:
    about: dict[str, Any] = {key: schema[key] for key in ("default", "description") if key in schema}
    rest = {key: part for key, part in schema.items() if key not in about}
    return {"anyOf": [rest, {"type": "null"}], **about}
