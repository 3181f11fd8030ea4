# SPDX-License-Identifier: Apache-2.0
"""A reader of somebody else's: the example passes the contract, and is found by its name."""

from __future__ import annotations

import runpy
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from otel_perfbuf.errors import ConfigError
from otel_perfbuf.rings.protocol import Reader, find_reader, registered_readers
from otel_perfbuf.testing import ReaderContract

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_reader.py"


class TestDatagramReader(ReaderContract):
    """The contract suite, as a plug-in's author runs it."""

    @pytest.fixture(autouse=True)
    def _sender(self) -> Iterator[None]:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as self.sender:
            yield

    def open_reader(self) -> Reader:
        """The example's reader on a port of its own."""
        reader: Any = runpy.run_path(str(EXAMPLE))["DatagramReader"]("127.0.0.1:0", per_cpu_bytes=1 << 20)
        self.address = reader.address
        return cast(Reader, reader)

    def write(self, data: bytes) -> None:
        """One datagram."""
        self.sender.sendto(data, self.address)


def test_the_example_is_short_and_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """Under 60 lines, and what its last lines print is the sample."""
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) < 60
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert capsys.readouterr().out == "0 b'hello'\n"


def test_a_registered_reader_is_found_by_its_name(register_readers: Callable[..., Path]) -> None:
    """By the entry point group; an unknown name gets the known ones, one that does not load its cause."""
    register_readers(fake="collections:OrderedDict", broken="no_such_module:Reader")
    assert registered_readers() == ("broken", "fake")
    assert find_reader("fake").__name__ == "OrderedDict"  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="known are forward, overwritable, broken, fake"):
        find_reader("missing")
    with pytest.raises(ConfigError, match="no_such_module"):
        find_reader("broken")
