# SPDX-License-Identifier: Apache-2.0
"""Configuration files and `--set` options as one tree of maps, lists and scalars.

What it is not: it checks no key (config.py). Source: CONTRACT section 2: later files merge maps and replace lists.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable
from typing import Any, Final, cast

import yaml

from otel_perfbuf.service.problems import Problems

__all__ = ["merge", "read_sources"]

_FILE_MAX_BYTES: Final = 4 << 20
_NESTING_MAX: Final = 50


class _Loader(yaml.SafeLoader):
    """YAML without duplicate keys; anchors are refused, since a few lines of them can expand to gigabytes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.constructor.ConstructorError(None, None, "aliases (*name) are not taken", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key is no plain text", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} is there twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_sources(files: Iterable[str], sets: Iterable[str], problems: Problems) -> tuple[dict[str, Any], bool]:
    """All files, then all ``a.b=c`` settings, merged in this order, and whether every file could be read.

    What is wrong is added to ``problems``.
    """
    tree: dict[str, Any] = {}
    whole = True
    for path in files:
        read = _read(path, problems)
        whole = whole and read is not None
        merge(tree, read or {})
    for setting in sets:
        key, equals, text = setting.partition("=")
        parts = key.split(".")
        if not equals or not all(parts):
            problems.add("--set " + setting, "write --set a.b=c, for example --set receivers.perf_buffer.ring=per_cpu")
            continue
        try:
            value = _parse(text)
        except (yaml.YAMLError, ValueError, RecursionError):  # ValueError: a date or a number that none can be
            value = text
        for part in reversed(parts):
            value = {part: value}
        merge(tree, value)
    return tree, whole


def merge(tree: dict[str, Any], later: dict[str, Any]) -> None:
    """Merges ``later`` into ``tree``: maps key by key; anything else replaces what was there."""
    for key, value in later.items():
        old = tree.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            merge(old, value)
        else:
            tree[key] = value


def _read(path: str, problems: Problems) -> dict[str, Any] | None:
    try:
        with open(path, "rb") as file:
            data = file.read(_FILE_MAX_BYTES + 1)
        if len(data) > _FILE_MAX_BYTES:
            raise ValueError(f"the file has more than {_FILE_MAX_BYTES} bytes")
        tree = _parse(data.decode("utf-8"))
    except OSError as fault:
        problems.add(path, f"the file cannot be read: {os.strerror(fault.errno or 0)}")
    except UnicodeDecodeError as fault:
        problems.add(path, f"the file is not UTF-8 text (byte {fault.start})")
    except yaml.MarkedYAMLError as fault:
        mark = fault.problem_mark or fault.context_mark
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else path
        problems.add(place, f"this is no YAML: {fault.problem or fault.context}")
    except yaml.YAMLError as fault:
        problems.add(path, f"this is no YAML: {str(fault).splitlines()[0]}")
    except ValueError as fault:
        problems.add(path, str(fault))
    except RecursionError:
        problems.add(path, "it is nested too deeply")
    else:
        if tree is None:
            return {}
        if not isinstance(tree, dict):
            problems.add(path, "it is no map of keys")
        elif not _nests_within(tree, _NESTING_MAX):
            problems.add(path, "it is nested too deeply")
        else:
            return cast(dict[str, Any], _with_text_keys(tree, problems))
    return None


def _parse(text: str) -> Any:
    return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader with less


def _nests_within(tree: Any, depth: int) -> bool:
    if depth == 0:
        return False
    if isinstance(tree, (dict, list)):
        return all(_nests_within(value, depth - 1) for value in (tree.values() if isinstance(tree, dict) else tree))
    return True


def _with_text_keys(tree: Any, problems: Problems, path: str = "") -> Any:
    """The tree without the keys that are no texts (``1:``, ``~:``); each of them is a problem."""
    if isinstance(tree, list):
        return [_with_text_keys(value, problems, f"{path}.{index}") for index, value in enumerate(tree)]
    if not isinstance(tree, dict):
        return tree
    kept = {}
    for key, value in tree.items():
        here = f"{path}.{key}" if path else str(key)
        if isinstance(key, str):
            kept[key] = _with_text_keys(value, problems, here)
        else:
            problems.add(here, "this key is no text; put it in quotes if it is meant so")
    return kept
