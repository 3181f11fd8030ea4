# SPDX-License-Identifier: Apache-2.0
"""`python -m otel_perfbuf` is `otel-perfbuf`."""

import sys

from otel_perfbuf.cli import main

sys.exit(main())
