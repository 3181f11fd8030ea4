# SPDX-License-Identifier: Apache-2.0
"""A customer of the shop in service.py: waits until it listens, pays once, says what came back.

usage: customer.py PORT_FILE
"""

from __future__ import annotations

import sys
import time
import urllib.error
import urllib.request
from pathlib import Path


def port_of(path: Path, timeout_s: float = 30.0) -> int:
    """The port that the service wrote; SystemExit when it does not come."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        text = path.read_text() if path.exists() else ""
        if text:
            return int(text)
        time.sleep(0.02)
    raise SystemExit(f"customer: the service did not start within {timeout_s:g} s: no port in {path}")


def main() -> None:
    """Pays once."""
    url = f"http://127.0.0.1:{port_of(Path(sys.argv[1]))}/pay"
    try:
        # No proxy of the environment may stand between two programs on one host.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        answer = opener.open(urllib.request.Request(url, data=b'{"order": 4711, "amount": "19.99"}'), timeout=10).status
    except urllib.error.HTTPError as error:
        answer = f"{error.code} {error.reason}"
    print(f"customer: POST /pay -> {answer}", file=sys.stderr)


if __name__ == "__main__":
    main()
