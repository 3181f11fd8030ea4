/* SPDX-License-Identifier: Apache-2.0 */
/*
 * _fast_objects.c: the types Arena, Sample and Lost of the extension _fast.
 * What it is not: it makes none of them out of frames (_fast.c).
 * Source: https://docs.python.org/3/c-api/typeobj.html (3.11 to 3.14, with the GIL).
 */
#include "_fast.h"
#include <structmember.h>
#include <sys/mman.h>

/* ---- Arena ---- */

static PyObject *arena_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static char *names[] = { "size", "prefault", NULL };
	Py_ssize_t size;
	int prefault = 1;
	void *memory;
	Arena *self;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "n|$p", names, &size, &prefault))
		return NULL;
	if (size <= 0)
		return PyErr_Format(PyExc_ValueError, "an arena of %zd bytes: at least 1 is needed", size);
	memory = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE,
	              MAP_PRIVATE | MAP_ANONYMOUS | (prefault ? MAP_POPULATE : MAP_NORESERVE), -1, 0);
	if (memory == MAP_FAILED)
		return PyErr_SetFromErrno(PyExc_OSError);
	self = (Arena *)type->tp_alloc(type, 0);
	if (!self) {
		munmap(memory, (size_t)size);
		return NULL;
	}
	self->memory = memory;
	self->size = size;
	return (PyObject *)self;
}

static void arena_dealloc(Arena *self)
{
	PyTypeObject *type = Py_TYPE(self);

	if (self->memory)
		munmap(self->memory, (size_t)self->size);
	type->tp_free(self);
	Py_DECREF(type);
}

static int arena_getbuffer(Arena *self, Py_buffer *view, int flags)
{
	if (PyBuffer_FillInfo(view, (PyObject *)self, self->memory, self->size, 0, flags) < 0)
		return -1;
	self->exports++;
	return 0;
}

static void arena_releasebuffer(Arena *self, Py_buffer *view)
{
	self->exports--;
}

static PyObject *arena_in_use(Arena *self, void *closure)
{
	return PyBool_FromLong(self->exports > 0);
}

static Py_ssize_t arena_length(Arena *self)
{
	return self->size;
}

static PyGetSetDef arena_getset[] = {
	{ "in_use", (getter)arena_in_use, NULL, "Whether any view, Sample or cffi pointer still looks at it.", NULL },
	{ 0 },
};

static PyType_Slot arena_slots[] = {
	{ Py_tp_doc, "Arena(size, *, prefault=True)\n--\n\nAnonymous memory of its own mapping, page-aligned." },
	{ Py_tp_new, arena_new },
	{ Py_tp_dealloc, arena_dealloc },
	{ Py_tp_getset, arena_getset },
	{ Py_bf_getbuffer, arena_getbuffer },
	{ Py_bf_releasebuffer, arena_releasebuffer },
	{ Py_sq_length, arena_length },
	{ 0, NULL },
};

PyType_Spec perfbuf_arena_spec = { "otel_perfbuf._core._fast.Arena", sizeof(Arena), 0, Py_TPFLAGS_DEFAULT,
	                           arena_slots };

/* ---- Sample ---- */

static PyObject *sample_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static char *names[] = { "cpu", "data", "time_ns", "pid", "tid", NULL };
	PyObject *data, *owner;
	unsigned long long time_ns = 0;
	unsigned int pid = 0, tid = 0;
	const Py_buffer *view;
	Sample *self;
	int cpu;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iO|$KII", names, &cpu, &data, &time_ns, &pid, &tid))
		return NULL;
	owner = PyMemoryView_GetContiguous(data, PyBUF_READ, 'C');
	if (!owner)
		return NULL;
	self = (Sample *)type->tp_alloc(type, 0);
	if (!self) {
		Py_DECREF(owner);
		return NULL;
	}
	view = PyMemoryView_GET_BUFFER(owner);
	self->owner = owner;
	self->data = view->buf;
	self->size = view->len;
	self->time_ns = time_ns;
	self->pid = pid;
	self->tid = tid;
	self->cpu = cpu;
	return (PyObject *)self;
}

static void sample_dealloc(Sample *self)
{
	PyTypeObject *type = Py_TYPE(self);

	Py_XDECREF(self->owner);
	type->tp_free(self);
	Py_DECREF(type);
}

static int sample_getbuffer(Sample *self, Py_buffer *view, int flags)
{
	return PyBuffer_FillInfo(view, (PyObject *)self, (void *)self->data, self->size, 1, flags);
}

static PyObject *sample_data(Sample *self, void *closure)
{
	return PyMemoryView_FromObject((PyObject *)self);
}

static PyObject *sample_repr(Sample *self)
{
	PyObject *bytes = PyBytes_FromStringAndSize((const char *)self->data, self->size), *text;

	if (!bytes)
		return NULL;
	text = PyUnicode_FromFormat("Sample(cpu=%d, data=%R)", self->cpu, bytes);
	Py_DECREF(bytes);
	return text;
}

static PyObject *sample_compare(Sample *self, PyObject *other_object, int op)
{
	const Sample *other = (Sample *)other_object;
	int equal;

	if (!Py_IS_TYPE(other_object, Py_TYPE(self)) || (op != Py_EQ && op != Py_NE))
		Py_RETURN_NOTIMPLEMENTED;
	equal = self->cpu == other->cpu && self->size == other->size && self->time_ns == other->time_ns &&
	        self->pid == other->pid && self->tid == other->tid &&
	        (self->size == 0 || memcmp(self->data, other->data, (size_t)self->size) == 0);
	return PyBool_FromLong(equal == (op == Py_EQ));
}

static PyMemberDef sample_members[] = {
	{ "cpu", T_INT, offsetof(Sample, cpu), READONLY, "The CPU whose ring it was in." },
	{ "time_ns", T_ULONGLONG, offsetof(Sample, time_ns), READONLY, "PERF_SAMPLE_TIME, 0 where not asked for." },
	{ "pid", T_UINT, offsetof(Sample, pid), READONLY, "PERF_SAMPLE_TID's process, 0 where not asked for." },
	{ "tid", T_UINT, offsetof(Sample, tid), READONLY, "PERF_SAMPLE_TID's thread, 0 where not asked for." },
	{ 0 },
};

static PyGetSetDef sample_getset[] = {
	{ "data", (getter)sample_data, NULL, "Its raw bytes, padded by the kernel; a read-only memoryview.", NULL },
	{ 0 },
};

static PyType_Slot sample_slots[] = {
	{ Py_tp_doc, "Sample(cpu, data, *, time_ns=0, pid=0, tid=0)\n--\n\n"
	             "One sample as the program sent it, padded by the kernel to 8n + 4 bytes (FACTS 8).\n\n"
	             "It borrows its batch's memory and keeps it alive." },
	{ Py_tp_new, sample_new },
	{ Py_tp_dealloc, sample_dealloc },
	{ Py_tp_repr, sample_repr },
	{ Py_tp_richcompare, sample_compare },
	{ Py_tp_hash, PyObject_HashNotImplemented },
	{ Py_tp_members, sample_members },
	{ Py_tp_getset, sample_getset },
	{ Py_bf_getbuffer, sample_getbuffer },
	{ 0, NULL },
};

PyType_Spec perfbuf_sample_spec = { "otel_perfbuf._core._fast.Sample", sizeof(Sample), 0, Py_TPFLAGS_DEFAULT,
	                            sample_slots };

/* ---- Lost ---- */

static PyObject *lost_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static char *names[] = { "cpu", "count", "time_ns", NULL };
	unsigned long long count, time_ns = 0;
	Lost *self;
	int cpu;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iK|$K", names, &cpu, &count, &time_ns))
		return NULL;
	self = (Lost *)type->tp_alloc(type, 0);
	if (self) {
		self->cpu = cpu;
		self->count = count;
		self->time_ns = time_ns;
	}
	return (PyObject *)self;
}

static void lost_dealloc(PyObject *self)
{
	PyTypeObject *type = Py_TYPE(self);

	type->tp_free(self);
	Py_DECREF(type);
}

static PyObject *lost_repr(Lost *self)
{
	return PyUnicode_FromFormat("Lost(cpu=%d, count=%llu)", self->cpu, self->count);
}

static PyObject *lost_compare(Lost *self, PyObject *other_object, int op)
{
	const Lost *other = (Lost *)other_object;

	if (!Py_IS_TYPE(other_object, Py_TYPE(self)) || (op != Py_EQ && op != Py_NE))
		Py_RETURN_NOTIMPLEMENTED;
	return PyBool_FromLong((self->cpu == other->cpu && self->count == other->count &&
	                        self->time_ns == other->time_ns) == (op == Py_EQ));
}

static PyMemberDef lost_members[] = {
	{ "cpu", T_INT, offsetof(Lost, cpu), READONLY, "The CPU whose ring had no room." },
	{ "count", T_ULONGLONG, offsetof(Lost, count), READONLY, "How many records." },
	{ "time_ns", T_ULONGLONG, offsetof(Lost, time_ns), READONLY, "Of the sample that it came with, else 0." },
	{ 0 },
};

static PyType_Slot lost_slots[] = {
	{ Py_tp_doc,
	  "Lost(cpu, count, *, time_ns=0)\n--\n\nRecords that found no room before the sample that follows." },
	{ Py_tp_new, lost_new },
	{ Py_tp_dealloc, lost_dealloc },
	{ Py_tp_repr, lost_repr },
	{ Py_tp_richcompare, lost_compare },
	{ Py_tp_hash, PyObject_HashNotImplemented },
	{ Py_tp_members, lost_members },
	{ 0, NULL },
};

PyType_Spec perfbuf_lost_spec = { "otel_perfbuf._core._fast.Lost", sizeof(Lost), 0, Py_TPFLAGS_DEFAULT, lost_slots };
