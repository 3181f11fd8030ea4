# SPDX-License-Identifier: Apache-2.0
"""Every fault of a configuration, collected, each with its key path and one sentence.

What it is not: it decides nothing. Source: CONTRACT section 2 (`KEY.PATH: sentence`).
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from otel_perfbuf.errors import ConfigError

__all__ = ["Problems", "is_secret"]

Model = TypeVar("Model", bound=BaseModel)
_SECRETS: Final = (
    "password",
    "passwd",
    "passphrase",
    "token",
    "secret",
    "authorization",
    "api_key",
    "apikey",
    "shared_key",
    "private_key",
    "credential",
)


def is_secret(path: str) -> bool:
    """Whether a key path names something that must not be shown: by its own name, or as a header's value."""
    parts = path.lower().replace("-", "_").split(".")
    return "headers" in parts[:-1] or any(word in parts[-1] for word in _SECRETS)


class Problems:
    """Collects faults; ``check`` raises one ConfigError with all of them."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []

    def add(self, path: str, sentence: str) -> None:
        """One more, unless it is there already."""
        if (path, sentence) not in self.found:
            self.found.append((path, sentence))

    def validate(self, model: type[Model], value: object, path: str) -> Model | None:
        """``value`` (None: an empty map) as a ``model``; None, with its faults added, when it is not one."""
        try:
            return model.model_validate({} if value is None else value)
        except ValidationError as errors:
            for error in errors.errors(include_url=False):
                self._add_error(model, dict(error), path)
            return None

    def check(self) -> None:
        """Raises ConfigError when there is any."""
        if self.found:
            text = "; ".join(f"{path}: {sentence}" if path else sentence for path, sentence in self.found)
            raise ConfigError(text, tuple(self.found))

    def _add_error(self, model: type[BaseModel], error: dict[str, Any], path: str) -> None:
        location = [str(part) for part in error["loc"]]
        full = ".".join([path, *location] if path else location)
        kind, given = error["type"], error.get("input")
        if kind == "extra_forbidden":
            known = _known_keys(model, location[:-1])
            self.add(full, "there is no such key" + (f"; known here: {', '.join(known)}" if known else ""))
        elif kind == "missing":
            self.add(full, "this key is missing")
        elif kind in ("model_type", "model_attributes_type", "dict_type"):
            self.add(full, "a map of keys belongs here, not " + _shown(given, full))
        else:
            message = str(error["msg"]).removeprefix("Value error, ")
            if message.startswith(("Input should be", "Input should have")):
                message = f"{_shown(given, full)} is wrong: it{message.removeprefix('Input')}"
            self.add(full, message[:1].lower() + message[1:] if message[1:2].islower() else message)


def _shown(value: object, path: str) -> str:
    if is_secret(path):
        return "the value"
    if isinstance(value, Mapping):
        return "a map"
    if isinstance(value, (list, tuple)):
        return "a list"
    text = repr(value)
    return "an empty value" if value is None else text if len(text) <= 60 else text[:57] + "..."


def _known_keys(model: type[BaseModel], location: list[str]) -> list[str]:
    """Keys of the model that ``location`` leads to, through optional and tuple fields."""
    for part in location:
        if part.isdigit():
            continue
        field = model.model_fields.get(part)
        inner = _model_in(field.annotation) if field is not None else None
        if inner is None:
            return []
        model = inner
    return list(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return annotation if issubclass(annotation, BaseModel) else None
    for inner in typing.get_args(annotation):
        found = _model_in(inner)
        if found is not None:
            return found
    return None
