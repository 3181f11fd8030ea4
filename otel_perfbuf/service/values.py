# SPDX-License-Identifier: Apache-2.0
"""`${env:VAR}`, `${env:VAR:-default}`, `${file:PATH}` and `$$` in a configuration's texts.

What it is not: a YAML parser. Source: CONTRACT section 2; the Collector's confmap providers env and file.

What is put in stays text: the options' types turn "8080" or "true" into what they need, and a token of digits stays
a token. A map or list cannot be put in.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Final

from otel_perfbuf.service.problems import Problems

__all__ = ["expand"]

_EXPRESSION = re.compile(r"\$\$|\$\{([^{}]*)\}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FILE_MAX_BYTES: Final = 1 << 20


def expand(value: Any, problems: Problems, environment: Mapping[str, str] = os.environ, path: str = "") -> Any:
    """``value`` with every text in it expanded; map keys are left as they are. Faults go to ``problems``."""
    if isinstance(value, dict):
        return {
            key: expand(inner, problems, environment, f"{path}.{key}" if path else str(key))
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [expand(inner, problems, environment, f"{path}.{index}") for index, inner in enumerate(value)]
    if not isinstance(value, str) or "$" not in value:
        return value

    def replaced(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        try:
            return _resolve(found[1], environment)
        except ValueError as fault:
            problems.add(path, str(fault))
            return ""

    return _EXPRESSION.sub(replaced, value)


def _resolve(expression: str, environment: Mapping[str, str]) -> str:
    scheme, _, rest = expression.partition(":")
    if scheme == "env":
        name, has_default, default = rest.partition(":-")
        if not _VARIABLE.fullmatch(name):
            raise ValueError(f"${{env:{rest}}} names no environment variable; write ${{env:NAME}}")
        value = environment.get(name)
        if has_default:
            return value or default
        if value is None:
            raise ValueError(f"environment variable {name} is not set; set it, or write ${{env:{name}:-default}}")
        return value
    if scheme == "file":
        try:
            with open(rest, "rb") as file:
                data = file.read(_FILE_MAX_BYTES + 1)
        except OSError as fault:
            raise ValueError(f"reading ${{file:{rest}}} failed: {os.strerror(fault.errno or 0)}") from None
        if len(data) > _FILE_MAX_BYTES:
            raise ValueError(f"${{file:{rest}}} has more than {_FILE_MAX_BYTES} bytes")
        try:
            return data.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            raise ValueError(f"${{file:{rest}}} is not UTF-8 text") from None
    raise ValueError(f"${{{expression}}} is none of ${{env:NAME}}, ${{file:PATH}} and $$ (a dollar sign)")
