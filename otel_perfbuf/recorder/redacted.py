# SPDX-License-Identifier: Apache-2.0
"""What a dump says of its processes and of why it was made, with the plan's redaction.

What it is not: records are redacted where they are encoded (_core/text_redact.c). Source: records/redaction.py.
"""

from __future__ import annotations

from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from otel_perfbuf.records.redaction import Redaction

__all__ = ["Redacted"]


class Redacted:
    """Texts and resources as they may leave; ``count`` of them were changed, each text counted once."""

    def __init__(self, redaction: Redaction | None) -> None:
        self._redaction = redaction
        self._known: dict[str, str] = {}

    @property
    def count(self) -> int:
        """How many different texts a pattern has changed."""
        return sum(shown != given for given, shown in self._known.items())

    def text(self, given: str) -> str:
        """A sentence, path or name."""
        if self._redaction is None:
            return given
        if given not in self._known:
            shown = self._redaction.redact(given.encode("utf-8", "surrogateescape"))
            self._known[given] = shown.decode("utf-8", "replace")
        return self._known[given]

    def resource(self, given: Resource) -> Resource:
        """A process: its attributes' values, those too that only their name tells to be secret. Changes ``given``."""
        for pair in given.attributes if self._redaction is not None else ():
            if pair.value.HasField("string_value"):
                named = f"{pair.key}="
                shown = self.text(named + pair.value.string_value)
                pair.value.string_value = shown.removeprefix(named) if shown.startswith(named) else shown
        return given
