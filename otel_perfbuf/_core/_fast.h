/* SPDX-License-Identifier: Apache-2.0 */
/* _fast.h: what the two files of the extension _fast share: its objects' layouts and types. See _fast.c. */
#ifndef PERFBUF_FAST_H
#define PERFBUF_FAST_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <linux/perf_event.h>
#include "ring.h"

/* Memory that batches live in: mapped, prefaulted; exports tells whether anyone still looks at it. */
typedef struct {
	PyObject_HEAD
	void *memory;
	Py_ssize_t size;
	Py_ssize_t exports;
} Arena;

/* One sample; it borrows the arena's bytes and keeps the arena. */
typedef struct {
	PyObject_HEAD
	PyObject *owner; /* a memoryview that keeps `data` alive; shared by all samples of a batch */
	const uint8_t *data;
	Py_ssize_t size;
	unsigned long long time_ns;
	unsigned int pid, tid;
	int cpu;
} Sample;

/* Records that found no room. */
typedef struct {
	PyObject_HEAD
	unsigned long long count;
	unsigned long long time_ns;
	int cpu;
} Lost;

extern PyType_Spec perfbuf_arena_spec, perfbuf_sample_spec, perfbuf_lost_spec;

#endif
