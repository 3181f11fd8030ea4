# SPDX-License-Identifier: Apache-2.0
"""Hostile bytes through the whole engine: nothing crashes, nothing outside the input is read, good samples survive.

Under `make test-asan` a read outside of the exactly sized inputs ends the run.
Source: otel_perfbuf/_core/history.h: inputs are untrusted.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from plan_rows import NUMBERS, PLAN
from samples import Arena, Capture, Engine, SampleWriter, string, word
from test_otlp import chunks, parse

from otel_perfbuf._core._core import ffi, lib

KINDS = st.integers(0, 9)
DATA = st.binary(max_size=40)
WORDS = st.one_of(st.integers(0, 64), st.integers(0, (1 << 64) - 1))
CAPTURES = st.lists(
    st.builds(Capture, st.integers(0, 5), KINDS, DATA, st.integers(0, 300), st.integers(0, 3)), max_size=4
)


@st.composite
def writers(draw: st.DrawFn) -> SampleWriter:
    """Records of all kinds, well framed, with values of any kind in them."""
    writer = SampleWriter(
        instance=draw(st.integers(0, 3)), tid=draw(st.integers(0, 5)), comm=draw(st.binary(max_size=16))
    )
    for _ in range(draw(st.integers(0, 5))):
        sequence, time = draw(st.integers(0, 6)), draw(st.integers(0, 1 << 63))
        match draw(st.integers(0, 7)):
            case 0:
                writer.entry(sequence, time, draw(CAPTURES))
            case 1:
                writer.signal(
                    sequence, time, draw(st.integers(-2, 70)), draw(st.integers(-70, 200)), draw(st.binary(max_size=32))
                )
            case 2:
                writer.exec(sequence, time, draw(DATA))
            case 3:
                writer.fork(sequence, time, draw(st.integers(0, 9)), draw(st.integers(0, 9)))
            case 4:
                writer.exit(sequence, time, draw(st.integers(-(1 << 31), (1 << 31) - 1)))
            case 5:
                writer.oom_kill(sequence, time, 1, draw(WORDS)).lost(sequence, time, 3, draw(st.integers(0, 5)))
            case _:
                writer.syscall(
                    sequence, time, draw(st.integers(0, len(NUMBERS) + 2)), draw(st.lists(WORDS, max_size=6)),
                    draw(st.integers(-4100, 70)), draw(WORDS), draw(CAPTURES), draw(st.integers(0, 31)),
                )  # fmt: skip
    return writer


@st.composite
def tampered(draw: st.DrawFn, good: bytes) -> bytes:
    """Some bytes overwritten, or the end cut off."""
    data = bytearray(good)
    for _ in range(draw(st.integers(0, 4))):
        if data:
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data)


def everything(engine: Engine) -> None:
    """Lines and records of whatever was accepted; protobuf reads them all."""
    engine.join()
    assert engine.sequences() == sorted(engine.sequences(), key=lambda key: key[0])
    selected, dropped = engine.select(0, (1 << 64) - 1)
    assert dropped == 0
    total = 0
    for data, count in chunks(engine, [b""] * engine.c.process_count):
        request = parse(data)
        total += count
        for process in request.resource_logs:
            for record in process.scope_logs[0].log_records:
                assert record.body.string_value.isprintable()
    assert total == selected == engine.c.event_count
    for index in range(engine.c.event_count):
        assert engine.line(PLAN.c, index)


@settings(max_examples=300, deadline=None)
@given(st.lists(writers(), max_size=4), st.lists(writers(), max_size=3))
def test_values_of_any_kind_in_sound_records(rings: list[SampleWriter], pages: list[SampleWriter]) -> None:
    """Every kind, number, flag and capture renders and encodes; nothing is malformed."""
    engine = Engine([w.sample() for w in rings], b"".join(w.page() for w in pages))
    assert engine.c.malformed == 0
    everything(engine)


@settings(max_examples=300, deadline=None)
@given(st.data(), st.lists(writers(), min_size=1, max_size=3))
def test_tampered_samples_and_pages(data: st.DataObject, made: list[SampleWriter]) -> None:
    """Changed and cut bytes are read as far as they agree with themselves."""
    samples = [data.draw(tampered(writer.sample())) for writer in made]
    open_call = SampleWriter().syscall(9, 1, 0, [1, 2, 3])
    pages = data.draw(tampered(b"".join(writer.page(open_call, seen_ns=5) for writer in made)))
    everything(Engine(samples, pages))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=200), max_size=4), st.binary(max_size=400))
def test_arbitrary_bytes(samples: list[bytes], pages: bytes) -> None:
    """Noise is malformed, whatever it is."""
    everything(Engine(samples, pages))


@settings(max_examples=100, deadline=None)
@given(st.data(), writers())
def test_a_bad_sample_costs_no_other(data: st.DataObject, bad: SampleWriter) -> None:
    """Between two good samples any bytes may stand: both are read."""
    good = [SampleWriter(instance=1 << 40 | n).syscall(1, 5 + n, NUMBERS["gettid"]).sample() for n in range(2)]
    engine = Engine([good[0], data.draw(tampered(bad.sample())), good[1]]).join()
    assert {1 << 40, 1 << 40 | 1} <= {int(t.instance) for t in engine.threads}


def test_what_disagrees_is_counted_as_malformed() -> None:
    """Each way a sample can lie about itself: one count, the records before it are kept."""
    good = SampleWriter().syscall(1, 1, 0, [1], captures=[string(0, b"abc")]).syscall(2, 2).sample()
    second = 64 + 48 + 8 + 16

    def lie(offset: int, value: int) -> tuple[int, int]:
        data = bytearray(good)
        data[offset] = value
        engine = Engine([bytes(data)])
        return int(engine.c.malformed), int(engine.c.event_count)

    assert lie(0, 2) == (1, 0)  # version
    assert lie(1, 7) == (1, 0)  # kind of sample
    assert lie(2, 255) == (1, 0)  # more bytes than are there
    assert lie(2, 63) == (1, 0)  # less than its own head
    assert lie(4, 9) == (1, 2)  # another number of records than it says
    assert lie(64 + 2, 77) == (1, 0)  # kind of record
    assert lie(64, 17) == (1, 0)  # bytes of a record: no multiple of 8
    assert lie(64 + 6, 7) == (1, 0)  # arguments
    assert lie(64 + 7, 2) == (1, 0)  # captures that are not there
    assert lie(64 + 48 + 8, 6) == (1, 0)  # a capture of argument 6
    assert lie(64 + 48 + 8 + 4, 9) == (1, 0)  # a capture behind the record's end
    assert lie(second, 255) == (1, 1)  # the second record is longer than what is left


def test_a_record_never_reaches_into_the_kernels_padding() -> None:
    """The sample's own length rules, not the raw data's."""
    sample = SampleWriter().syscall(1, 1).sample()
    longer = Arena([sample + SampleWriter().syscall(2, 2).sample()[64:]])
    size = ffi.new("struct pb_history_size *")
    assert lib.pb_history_count_samples(longer.arena, longer.frames, 1, size) == lib.PB_OK
    assert size.events == 2  # one record and the gap that may stand before it


def test_words_of_the_wrong_size_show_the_address() -> None:
    """A capture that is shorter than its kind needs is not used."""
    short = Capture(2, lib.PB_CAPTURE_WORD, b"\1\0")
    writer = SampleWriter().syscall(1, 1, NUMBERS["getsockname"], [4, 0x10, 0x20], 0, captures=[short])
    assert Engine([writer.sample()]).join().line(PLAN.c) == "getsockname(4, 0x10, 0x20) = 0"
    writer = SampleWriter().syscall(1, 1, NUMBERS["getsockname"], [4, 0x10, 0x20], 0, captures=[word(2, 9)])
    assert Engine([writer.sample()]).join().line(PLAN.c) == "getsockname(4, 0x10, [9]) = 0"
