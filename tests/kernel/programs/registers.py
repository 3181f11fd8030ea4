# SPDX-License-Identifier: Apache-2.0
"""A process that registers for exact spans and writes its slots by hand; each probe's path says what must be found.

usage: registers.py SOCKET MODE. Modes that wait read a line from stdin and answer with one on stdout.
"""

import os
import sys
import threading
import time

from otel_perfbuf.sdk.spanmap import Registration

path, mode = sys.argv[1:3]


def probe(name: str) -> None:
    """A call that says whose it is."""
    os.access(f"/probe/{name}", os.F_OK)


def ids(number: int) -> bytes:
    """A span of that number."""
    return b"\x77" * 16 + number.to_bytes(8, "big")


def hexed(number: int) -> str:
    """Its id, as a probe names it."""
    return number.to_bytes(8, "big").hex()


def wait() -> None:
    """Tells the test that we are there, and goes on when it says so."""
    os.write(1, b"ready\n")
    sys.stdin.buffer.readline()


def registered(registration: Registration, generation: int = 0) -> None:
    """Until the map is there, or a newer one."""
    end = time.monotonic() + 20
    while registration.map is None or registration.generation <= generation:
        assert time.monotonic() < end, "the agent does not answer"
        registration._look_at_s = 0.0
        registration.look()
        time.sleep(0.005)


def main_slot(registration: Registration):
    """The main thread's slot."""
    assert registration.map is not None
    slot = registration.map.claim(threading.get_native_id())
    assert slot is not None
    return slot


def simple(registration: Registration) -> None:
    """One span, none, another, and one that is half written."""
    slot = main_slot(registration)
    probe("none")
    slot.write(ids(1))
    probe(hexed(1))
    os.access("/probe/" + hexed(1) + "/" + "x" * 3000, os.F_OK)  # too long for a page: a sample of its own
    slot.write(None)
    probe("none")
    slot.write(ids(2))
    for _ in range(30):  # more than a page holds
        probe(hexed(2))
    # As a signal handler finds it that came in the midst of a write:
    slot._words[slot._word] = slot._idle
    slot._bytes[slot._at : slot._at + 8] = b"\x11" * 8
    probe("none")
    slot._bytes[slot._at : slot._at + 24] = ids(3)
    probe("none")
    slot._words[slot._word] = slot._running
    probe(hexed(3))


def threads(registration: Registration, count: int) -> None:
    """Every thread writes its own slot; all live at the same time, in a map that has grown for them."""
    gate = threading.Barrier(count + 1, timeout=60)
    missed = []
    end = time.monotonic() + 20
    while registration.map.buckets * 2 < count:  # of 8 slots each: a quarter is used
        registration.map.full = True  # as a thread that finds no slot says
        registration.look()
        assert time.monotonic() < end, "the map does not grow"
        time.sleep(0.005)

    def work() -> None:
        tid = threading.get_native_id()
        slot = registration.map.claim(tid)
        gate.wait()
        if slot is None:
            missed.append(tid)
        else:
            slot.write(ids(tid))
            probe(hexed(tid))
        gate.wait()

    threading.stack_size(64 << 10)
    started = [threading.Thread(target=work) for _ in range(count)]
    for thread in started:
        thread.start()
    gate.wait()
    gate.wait()
    for thread in started:
        thread.join()
    assert not missed, f"{len(missed)} threads found no slot"
    main_slot(registration)
    probe("none")


def ended(registration: Registration) -> None:
    """A thread that ends without freeing its slot: the kernel does."""
    assert registration.map is not None
    kept = []

    def work() -> None:
        slot = registration.map.claim(threading.get_native_id())
        slot.write(ids(5))
        probe(hexed(5))
        kept.append(slot)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    end = time.monotonic() + 10
    while kept[0]._words[kept[0]._word]:
        assert time.monotonic() < end, "the slot of a thread that has ended is still its own"
        time.sleep(0.005)


def forks(registration: Registration) -> None:
    """A child writes into its parent's memory, as nobody should: its calls have no span for it."""
    slot = main_slot(registration)
    slot.write(ids(6))
    probe(hexed(6))
    if not (pid := os.fork()):
        probe("none")
        os._exit(0)
    os.waitpid(pid, 0)
    probe(hexed(6))


registration = Registration(path)
if mode == "after-exec":
    probe("none")
    wait()
    sys.exit(0)
registration.look()
registered(registration)
wait()
if mode == "simple":
    simple(registration)
elif mode.startswith("threads"):
    threads(registration, int(mode.removeprefix("threads")))
elif mode == "ended":
    ended(registration)
elif mode == "forks":
    forks(registration)
elif mode == "restart":
    first = main_slot(registration)  # a slot is freed when nobody has it
    first.write(ids(1))
    probe(hexed(1))
    generation = registration.generation
    wait()  # the agent has gone
    probe("none")
    registered(registration, generation)
    second = main_slot(registration)
    second.write(ids(2))
    probe(hexed(2))
elif mode == "exec":
    slot = main_slot(registration)
    slot.write(ids(4))
    probe(hexed(4))
    os.execv(sys.executable, [sys.executable, __file__, path, "after-exec"])
wait()
