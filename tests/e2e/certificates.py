# SPDX-License-Identifier: Apache-2.0
"""Certificates of an authority of the test's own, by trustme; PEM files in a directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme

__all__ = ["Certificates", "make_certificates"]


@dataclass(frozen=True)
class Certificates:
    """``ca``; a server's for 127.0.0.1 and localhost; a client's."""

    ca: str
    server_cert: str
    server_key: str
    client_cert: str
    client_key: str


def make_certificates(directory: Path) -> Certificates:
    """Writes them."""
    authority = trustme.CA()
    paths = {}
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    for name, issued in (
        ("server", authority.issue_cert("127.0.0.1", "localhost")),
        ("client", authority.issue_cert("agent@perfbuf")),
    ):
        paths[f"{name}_cert"] = str(directory / f"{name}.pem")
        paths[f"{name}_key"] = str(directory / f"{name}.key")
        issued.cert_chain_pems[0].write_to_path(paths[f"{name}_cert"])
        issued.private_key_pem.write_to_path(paths[f"{name}_key"])
    return Certificates(str(directory / "ca.pem"), **paths)
