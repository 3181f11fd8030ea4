# SPDX-License-Identifier: Apache-2.0
"""All rings behind one map, as CPUs come and go. What it is not: it reads no ring memory and waits for nothing.

Facts: the map's key is the CPU's number, and there may be holes (FACTS 13). A CPU that goes offline takes its event
  with it: the mapping and what is in it stay, but a CPU that comes back writes into a new event only.
Decision: the ring of a CPU that went is kept and read; one that comes back gets a new ring beside it. An old ring is
  given back by a later rescan: a forward one when it is drained, an overwritable one when its CPU has left a newer one.
Source: Linux kernel/events/core.c (perf_event_exit_cpu), kernel/trace/bpf_trace.c (event->oncpu).
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Collection

from otel_perfbuf.errors import ConfigError, KernelError
from otel_perfbuf.rings.cpus import online_cpus
from otel_perfbuf.rings.ring import EventOptions, PerfMap, Ring, open_ring

__all__ = ["RingSet"]


class RingSet:
    """The rings of one reader; its owner serialises.

    ``opened`` is called with each new ring's fd, before it is written.
    ``pairs``: each CPU has a second ring, of the same index in ``spares``, for ``flip``.
    """

    def __init__(
        self, map: PerfMap, options: EventOptions, opened: Callable[[int], None] | None, *, pairs: bool
    ) -> None:
        self.rings: list[Ring] = []
        self.spares: list[Ring] = []
        self.lost_before = 0
        """What the kernel counted as lost in rings that were given back."""
        self._map = map
        self._options = options
        self._opened = opened
        self._pairs = pairs
        try:
            self.rescan(frozenset())
            if not self.rings:
                raise KernelError(errno.ENODEV, f"opening perf rings for the map {map.name}: every CPU went offline")
        except BaseException:
            self.close()
            raise

    @property
    def cpus(self) -> tuple[int, ...]:
        """The CPUs whose ring is written, ascending."""
        return tuple(sorted(ring.cpu for ring in self.rings if not ring.gone))

    def rescan(self, went: Collection[int], drained: Callable[[Ring], bool] = lambda _: False) -> list[Ring]:
        """Opens rings of CPUs that came, keeps those of CPUs that went; gives the rings that nobody needs any more.

        ``went``: CPUs that are known to have been offline, perhaps only for a moment. The rings returned are out of
        ``rings``; the caller closes them when it has stopped to read them. KernelError when a ring cannot be opened:
        those that could be opened are in then.
        """
        online = [cpu for cpu in online_cpus() if cpu < self._map.max_entries]
        if not online:
            raise ConfigError(
                f"the map {self._map.name} has {self._map.max_entries} entries and no online CPU has so low a number; "
                "make max_entries the number of possible CPUs"
            )
        for ring in self.rings:
            if not ring.gone and (ring.cpu not in online or ring.cpu in went):
                ring.gone = True
                self._map.delete(ring.cpu)
        for cpu in sorted(set(online) - set(self.cpus)):
            self._open(cpu)
        return self._take_old(drained)

    def flip(self) -> None:
        """Puts every CPU's second ring into the map; from now on that one is in ``rings``."""
        if not self._pairs:
            raise AssertionError("a set without spares has nothing to flip")
        for index, spare in enumerate(self.spares):
            ring = self.rings[index]
            if not ring.gone:
                self._map.set(spare)
            spare.gone = ring.gone
            self.rings[index], self.spares[index] = spare, ring

    def lost(self) -> int | None:
        """Records that ever found no room, as the kernel counts them; None where it does not (before Linux 6.0)."""
        known = [lost for ring in self.all() if (lost := ring.lost()) is not None]
        return self.lost_before + sum(known) if len(known) == len(self.all()) else None

    def all(self) -> list[Ring]:
        """Every ring that is open, spares too."""
        return [*self.rings, *self.spares]

    def close(self) -> None:
        """Takes the rings out of the map and gives them back."""
        for ring in self.rings:
            if not ring.gone:
                self._map.delete(ring.cpu)
        for ring in self.all():
            ring.close()
        self.rings, self.spares = [], []

    def _open(self, cpu: int) -> None:
        with contextlib.ExitStack() as undo:
            ring = open_ring(cpu, self._options)
            if ring is None:
                return
            undo.callback(ring.close)
            spare = None
            if self._pairs:
                spare = open_ring(cpu, self._options)
                if spare is None:
                    return
                undo.callback(spare.close)
            if self._opened is not None:
                self._opened(ring.fd)
            self._map.set(ring)
            undo.pop_all()
        self.rings.append(ring)
        if spare is not None:
            self.spares.append(spare)

    def _take_old(self, drained: Callable[[Ring], bool]) -> list[Ring]:
        old: list[int] = []
        for index, ring in enumerate(self.rings):
            newer = [other for other in self.rings[index + 1 :] if other.cpu == ring.cpu]
            if ring.gone and (drained(ring) if not self._options.overwritable else any(r.gone for r in newer)):
                old.append(index)
        taken = [self.rings[index] for index in old] + [self.spares[index] for index in old if self._pairs]
        self.rings = [ring for index, ring in enumerate(self.rings) if index not in old]
        self.spares = [ring for index, ring in enumerate(self.spares) if index not in old]
        self.lost_before += sum(ring.lost() or 0 for ring in taken)
        return taken
