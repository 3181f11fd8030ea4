/* SPDX-License-Identifier: Apache-2.0 */
/*
 * _fast.c: the CPython extension otel_perfbuf._core._fast: what must make Python objects fast (FACTS 50).
 * What it is not: it knows no rings and checks no records; it takes frames (ring.h) that the core has made.
 * Source: https://docs.python.org/3/c-api/ (3.11 to 3.14, with the GIL).
 *
 *   Arena, Sample, Lost  the objects (_fast_objects.c)
 *   data_list, iterate   list[bytes], and an iterator of Sample and Lost, over an arena and its frames
 */
#include "_fast.h"

/* ---- an arena with its frames ---- */

typedef struct {
	PyTypeObject *arena, *sample, *lost, *iterator;
} State;

/* What data_list and iterate take: (arena, frames, count). The views keep both alive. */
typedef struct {
	PyObject *arena, *frames; /* memoryviews */
	Py_ssize_t count;
} Source;

static void source_clear(Source *source)
{
	Py_CLEAR(source->arena);
	Py_CLEAR(source->frames);
}

/* 1 when the frame's bytes lie in the arena: the core made it so, a mixed-up pair of arguments does not. */
static int inside(const Source *source, const struct pb_frame *frame)
{
	uint64_t size = (uint64_t)PyMemoryView_GET_BUFFER(source->arena)->len;

	if (frame->offset <= size && frame->bytes <= size - frame->offset)
		return 1;
	PyErr_SetString(PyExc_ValueError, "a frame lies outside its arena: the two do not belong together");
	return 0;
}

static int source_parse(PyObject *const *args, Py_ssize_t nargs, Source *source)
{
	*source = (Source){ 0 };
	if (nargs != 3) {
		PyErr_SetString(PyExc_TypeError, "expected (arena, frames, count)");
		return -1;
	}
	source->count = PyLong_AsSsize_t(args[2]);
	if (source->count < 0) {
		if (!PyErr_Occurred())
			PyErr_SetString(PyExc_ValueError, "a count of frames below 0");
		return -1;
	}
	source->arena = PyMemoryView_GetContiguous(args[0], PyBUF_READ, 'C');
	source->frames = PyMemoryView_GetContiguous(args[1], PyBUF_READ, 'C');
	if (!source->arena || !source->frames) {
		source_clear(source);
		return -1;
	}
	if (PyMemoryView_GET_BUFFER(source->frames)->len / (Py_ssize_t)sizeof(struct pb_frame) < source->count) {
		source_clear(source);
		PyErr_Format(PyExc_ValueError, "the frames' buffer is too small for %zd frames", source->count);
		return -1;
	}
	return 0;
}

static PyObject *fast_data_list(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
	const struct pb_frame *frames, *end;
	const char *arena;
	PyObject *list;
	Py_ssize_t at = 0;
	Source source;

	if (source_parse(args, nargs, &source) < 0)
		return NULL;
	frames = PyMemoryView_GET_BUFFER(source.frames)->buf;
	end = frames + source.count;
	arena = PyMemoryView_GET_BUFFER(source.arena)->buf;
	list = PyList_New(source.count);
	for (; list && frames < end; frames++) {
		PyObject *bytes = NULL;

		if (frames->type != PERF_RECORD_SAMPLE)
			continue;
		if (inside(&source, frames))
			bytes = PyBytes_FromStringAndSize(arena + frames->offset, frames->bytes);
		if (!bytes)
			Py_CLEAR(list);
		else
			PyList_SET_ITEM(list, at++, bytes);
	}
	/* The rest of the places is for losses, which are left out. */
	if (list && at < source.count && PyList_SetSlice(list, at, source.count, NULL) < 0)
		Py_CLEAR(list);
	source_clear(&source);
	return list;
}

typedef struct {
	PyObject_HEAD
	PyTypeObject *sample, *lost;
	Source source;
	Py_ssize_t at;
} Iterator;

static PyObject *fast_iterate(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
	State *state = PyModule_GetState(module);
	Source source;
	Iterator *self;

	if (source_parse(args, nargs, &source) < 0)
		return NULL;
	self = (Iterator *)state->iterator->tp_alloc(state->iterator, 0);
	if (!self) {
		source_clear(&source);
		return NULL;
	}
	self->sample = (PyTypeObject *)Py_NewRef(state->sample);
	self->lost = (PyTypeObject *)Py_NewRef(state->lost);
	self->source = source;
	return (PyObject *)self;
}

static void iterator_dealloc(Iterator *self)
{
	PyTypeObject *type = Py_TYPE(self);

	source_clear(&self->source);
	Py_XDECREF(self->sample);
	Py_XDECREF(self->lost);
	type->tp_free(self);
	Py_DECREF(type);
}

static PyObject *iterator_next(Iterator *self)
{
	const struct pb_frame *frame;
	Sample *sample;

	if (self->at >= self->source.count)
		return NULL;
	frame = (const struct pb_frame *)PyMemoryView_GET_BUFFER(self->source.frames)->buf + self->at++;
	if (frame->type == PERF_RECORD_LOST) {
		Lost *lost = PyObject_New(Lost, self->lost);

		if (lost) {
			lost->cpu = frame->cpu;
			lost->count = frame->lost;
			lost->time_ns = frame->time_ns;
		}
		return (PyObject *)lost;
	}
	if (!inside(&self->source, frame))
		return NULL;
	sample = PyObject_New(Sample, self->sample);
	if (!sample)
		return NULL;
	sample->owner = Py_NewRef(self->source.arena);
	sample->data = (const uint8_t *)PyMemoryView_GET_BUFFER(self->source.arena)->buf + frame->offset;
	sample->size = frame->bytes;
	sample->time_ns = frame->time_ns;
	sample->pid = frame->pid;
	sample->tid = frame->tid;
	sample->cpu = frame->cpu;
	return (PyObject *)sample;
}

static PyObject *iterator_length_hint(Iterator *self, PyObject *unused)
{
	return PyLong_FromSsize_t(self->source.count - self->at);
}

static PyMethodDef iterator_methods[] = {
	{ "__length_hint__", (PyCFunction)iterator_length_hint, METH_NOARGS, NULL },
	{ 0 },
};

static PyType_Slot iterator_slots[] = {
	{ Py_tp_dealloc, iterator_dealloc },
	{ Py_tp_iter, PyObject_SelfIter },
	{ Py_tp_iternext, iterator_next },
	{ Py_tp_methods, iterator_methods },
	{ 0, NULL },
};

static PyType_Spec iterator_spec = { "otel_perfbuf._core._fast._Iterator", sizeof(Iterator), 0,
	                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, iterator_slots };

/* ---- module ---- */

static int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **type)
{
	*type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
	return *type ? PyModule_AddType(module, *type) : -1;
}

static int fast_exec(PyObject *module)
{
	State *state = PyModule_GetState(module);

	if (add_type(module, &perfbuf_arena_spec, &state->arena) < 0 ||
	    add_type(module, &perfbuf_sample_spec, &state->sample) < 0 ||
	    add_type(module, &perfbuf_lost_spec, &state->lost) < 0)
		return -1;
	state->iterator = (PyTypeObject *)PyType_FromModuleAndSpec(module, &iterator_spec, NULL);
	return state->iterator ? 0 : -1;
}

static int fast_traverse(PyObject *module, visitproc visit, void *arg)
{
	State *state = PyModule_GetState(module);

	Py_VISIT(state->arena);
	Py_VISIT(state->sample);
	Py_VISIT(state->lost);
	Py_VISIT(state->iterator);
	return 0;
}

static int fast_clear(PyObject *module)
{
	State *state = PyModule_GetState(module);

	Py_CLEAR(state->arena);
	Py_CLEAR(state->sample);
	Py_CLEAR(state->lost);
	Py_CLEAR(state->iterator);
	return 0;
}

static PyMethodDef fast_methods[] = {
	{ "data_list", (PyCFunction)(void (*)(void))fast_data_list, METH_FASTCALL,
	  "data_list(arena, frames, count, /)\n--\n\nThe samples' raw bytes, in the frames' order; LOST is passed "
	  "over." },
	{ "iterate", (PyCFunction)(void (*)(void))fast_iterate, METH_FASTCALL,
	  "iterate(arena, frames, count, /)\n--\n\nAn iterator of Sample and Lost in the frames' order." },
	{ 0 },
};

static PyModuleDef_Slot fast_slots[] = {
	{ Py_mod_exec, fast_exec },
	{ 0, NULL },
};

static struct PyModuleDef fast_module = {
	PyModuleDef_HEAD_INIT,
	.m_name = "otel_perfbuf._core._fast",
	.m_doc = "Samples of a batch as Python objects.",
	.m_size = sizeof(State),
	.m_methods = fast_methods,
	.m_slots = fast_slots,
	.m_traverse = fast_traverse,
	.m_clear = fast_clear,
};

PyMODINIT_FUNC PyInit__fast(void)
{
	return PyModuleDef_Init(&fast_module);
}
