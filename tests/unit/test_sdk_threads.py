# SPDX-License-Identifier: Apache-2.0
"""Which spans have their thread to themselves, as far as the spans themselves can tell."""

from __future__ import annotations

import asyncio

from otel_perfbuf.sdk.threads import OpenSpans

LIFETIME, REQUEST, REMOTE = 1, 2, 999


def test_a_span_around_an_event_loop_is_interleaved_by_the_spans_in_it() -> None:
    """`with span: asyncio.run(serve())`: requests of other traces run on its thread: it claims no records."""
    spans = OpenSpans()

    async def serve() -> tuple[int, bool]:
        spans.begin(REQUEST, REMOTE)
        await asyncio.sleep(0)
        return spans.end(REQUEST)

    spans.begin(LIFETIME, 0)
    assert asyncio.run(serve())[1]
    assert spans.end(LIFETIME)[1]
    spans.begin(REQUEST, 0)
    assert not spans.end(REQUEST)[1], "the loop is over"
