/* SPDX-License-Identifier: Apache-2.0 */
/*
 * otlp_scan.c: the walk over a request's resources, scopes and records. See otlp_scan.h.
 *
 * One walk, as memory is read once: a resource that comes behind its scopes is filled in afterwards, and where a scope
 * comes behind its records, which nobody writes, they are walked again. Fields that come twice without being `repeated`
 * merge as in protobuf: the last number or text wins.
 */
#include "otlp_scan.h"
#include "wire_read.h"

/* Field numbers; source: opentelemetry-proto. */
enum { REQUEST_RESOURCES = 1, RESOURCES_RESOURCE = 1, RESOURCES_SCOPES = 2, SCOPES_SCOPE = 1, SCOPES_RECORDS = 2 };
enum { SCOPE_NAME = 1, STATUS_MESSAGE = 2, STATUS_CODE = 3, STATUS_CODE_ERROR = 2 };
enum {
	SPAN_TRACE_ID = 1,
	SPAN_ID = 2,
	SPAN_NAME = 5,
	SPAN_START = 7,
	SPAN_END = 8,
	SPAN_ATTRIBUTES = 9,
	SPAN_EVENTS = 11,
	SPAN_STATUS = 15,
	SPAN_FLAGS = 16
};
enum {
	LOG_TIME = 1,
	LOG_SEVERITY = 2,
	LOG_BODY = 5,
	LOG_ATTRIBUTES = 6,
	LOG_FLAGS = 8,
	LOG_TRACE_ID = 9,
	LOG_SPAN_ID = 10,
	LOG_OBSERVED = 11,
	LOG_EVENT_NAME = 12
};
enum { EVENT_NAME = 2, EVENT_ATTRIBUTES = 3, PAIR_KEY = 1, PAIR_VALUE = 2, ANY_FIRST = 1, ANY_LAST = 7 };

#define OWN_SCOPE "otel_perfbuf"
#define THREAD_ID "thread.id"
#define PROCESS_ID "process.pid"
#define DUMP_ID "perfbuf.dump.id"
#define IS(view, text) pb_view_is(view, text, sizeof(text) - 1)
#define KEY(number, type) ((number) << 3 | (type))

struct scanner {
	const uint8_t *request;
	const struct pb_scan_rules *rules;
	struct pb_hit *hits;
	uint64_t capacity;
	struct pb_scan scan;
	struct pb_range resource;
	uint32_t attributes; /* the field number of a record's */
	bool is_logs;
	bool is_own; /* the scope at hand is ours */
};

static struct pb_range range_of(const struct scanner *scanner, const struct pb_view *view)
{
	return (struct pb_range){ (uint64_t)(view->at - scanner->request), pb_view_bytes(view) };
}

static uint32_t key_of(const struct pb_field_view *field)
{
	return KEY(field->number, field->type);
}

/* Copies an id of `size` bytes; of another length, or all zero, it is none. */
static void take_id(struct pb_hit *hit, const struct pb_view *data, uint8_t *id, uint32_t size, uint32_t bit)
{
	static const uint8_t zero[16];

	hit->has &= ~bit;
	if (pb_view_bytes(data) != size || !memcmp(data->at, zero, size))
		return;
	memcpy(id, data->at, size);
	hit->has |= bit;
}

static bool read_status(const struct scanner *scanner, struct pb_view view, struct pb_hit *hit, int32_t *code)
{
	enum pb_field_found found;
	struct pb_field_view field;

	while ((found = pb_field_next(&view, &field)) == PB_FIELD_FOUND) {
		if (key_of(&field) == KEY(STATUS_MESSAGE, PB_WIRE_BYTES))
			hit->message = range_of(scanner, &field.data);
		else if (key_of(&field) == KEY(STATUS_CODE, PB_WIRE_VARINT))
			*code = (int32_t)field.value;
	}
	return found == PB_FIELD_END;
}

/* The text of an AnyValue, if that is what it holds. */
static bool read_text(const struct scanner *scanner, struct pb_view view, struct pb_range *text)
{
	enum pb_field_found found;
	struct pb_field_view field;

	while ((found = pb_field_next(&view, &field)) == PB_FIELD_FOUND) {
		if (key_of(&field) == KEY(PB_ANY_STRING, PB_WIRE_BYTES))
			*text = range_of(scanner, &field.data);
		else if (field.number >= ANY_FIRST && field.number <= ANY_LAST)
			text->bytes = 0;
	}
	return found == PB_FIELD_END;
}

static bool read_integer(struct pb_view view, int64_t *number, uint32_t *has, uint32_t bit)
{
	enum pb_field_found found;
	struct pb_field_view field;

	while ((found = pb_field_next(&view, &field)) == PB_FIELD_FOUND) {
		if (field.number < ANY_FIRST || field.number > ANY_LAST)
			continue;
		*has &= ~bit;
		if (key_of(&field) == KEY(PB_ANY_INT, PB_WIRE_VARINT)) {
			*number = (int64_t)field.value;
			*has |= bit;
		}
	}
	return found == PB_FIELD_END;
}

/* A pair's key and value; `at` is NULL of one that is not there. */
static bool split_pair(struct pb_view view, struct pb_view *key, struct pb_view *value)
{
	enum pb_field_found found;
	struct pb_field_view field;

	*key = *value = (struct pb_view){ 0 };
	while ((found = pb_field_next(&view, &field)) == PB_FIELD_FOUND) {
		if (key_of(&field) == KEY(PAIR_KEY, PB_WIRE_BYTES))
			*key = field.data;
		else if (key_of(&field) == KEY(PAIR_VALUE, PB_WIRE_BYTES))
			*value = field.data;
	}
	return found == PB_FIELD_END;
}

static bool read_pair(struct pb_view view, struct pb_hit *hit)
{
	struct pb_view key, value;

	if (!split_pair(view, &key, &value))
		return false;
	if (!key.at)
		return true;
	if (IS(&key, DUMP_ID))
		hit->has |= PB_HIT_OWN;
	if (IS(&key, THREAD_ID) && value.at)
		return read_integer(value, &hit->thread_id, &hit->has, PB_HIT_THREAD_ID);
	if (IS(&key, PROCESS_ID) && value.at)
		return read_integer(value, &hit->process_id, &hit->has, PB_HIT_PROCESS_ID);
	return true;
}

/* One text of an exception event; a later pair of the same key takes the place of an earlier one. */
static bool read_said(const struct scanner *scanner, const struct pb_view *value, struct pb_range *said)
{
	*said = (struct pb_range){ 0 };
	return !value->at || read_text(scanner, *value, said);
}

/* An event; the last one that is an exception is kept. */
static bool read_event(const struct scanner *scanner, struct pb_view view, struct pb_hit *hit)
{
	struct pb_range type = { 0 }, message = { 0 };
	struct pb_view key, value;
	enum pb_field_found found;
	struct pb_field_view field;
	bool exception = false;

	while ((found = pb_field_next(&view, &field)) == PB_FIELD_FOUND) {
		if (key_of(&field) == KEY(EVENT_NAME, PB_WIRE_BYTES)) {
			exception = IS(&field.data, "exception");
		} else if (key_of(&field) == KEY(EVENT_ATTRIBUTES, PB_WIRE_BYTES)) {
			if (!split_pair(field.data, &key, &value))
				return false;
			if (key.at && IS(&key, "exception.type") && !read_said(scanner, &value, &type))
				return false;
			if (key.at && IS(&key, "exception.message") && !read_said(scanner, &value, &message))
				return false;
		}
	}
	if (exception) {
		hit->has |= PB_HIT_EXCEPTION;
		hit->exception_type = type;
		hit->exception_message = message;
	}
	return found == PB_FIELD_END;
}

/* What only a hit is asked for. */
static bool read_attributes(const struct scanner *scanner, struct pb_view view, struct pb_hit *hit)
{
	enum pb_field_found found;
	struct pb_field_view field;

	while ((found = pb_field_next(&view, &field)) == PB_FIELD_FOUND) {
		if (key_of(&field) == KEY(scanner->attributes, PB_WIRE_BYTES) && !read_pair(field.data, hit))
			return false;
		if (key_of(&field) == KEY(SPAN_EVENTS, PB_WIRE_BYTES) && hit->why & PB_HIT_ERROR &&
		    !hit->message.bytes && !read_event(scanner, field.data, hit))
			return false;
	}
	return found == PB_FIELD_END;
}

static bool read_span(const struct scanner *scanner, struct pb_view view, struct pb_hit *hit)
{
	const struct pb_scan_rules *rules = scanner->rules;
	enum pb_field_found found;
	struct pb_field_view field;
	int32_t code = 0;

	while ((found = pb_field_next(&view, &field)) == PB_FIELD_FOUND) {
		switch (key_of(&field)) {
		case KEY(SPAN_TRACE_ID, PB_WIRE_BYTES):
			take_id(hit, &field.data, hit->trace_id, sizeof(hit->trace_id), PB_HIT_TRACE_ID);
			break;
		case KEY(SPAN_ID, PB_WIRE_BYTES):
			take_id(hit, &field.data, hit->span_id, sizeof(hit->span_id), PB_HIT_SPAN_ID);
			break;
		case KEY(SPAN_NAME, PB_WIRE_BYTES):
			hit->name = range_of(scanner, &field.data);
			break;
		case KEY(SPAN_START, PB_WIRE_FIXED64):
			hit->start_ns = field.value;
			break;
		case KEY(SPAN_END, PB_WIRE_FIXED64):
			hit->end_ns = field.value;
			break;
		case KEY(SPAN_FLAGS, PB_WIRE_FIXED32):
			hit->flags = (uint32_t)field.value;
			break;
		case KEY(SPAN_STATUS, PB_WIRE_BYTES):
			if (!read_status(scanner, field.data, hit, &code))
				return false;
			break;
		default:
			break;
		}
	}
	if (rules->errors && code == STATUS_CODE_ERROR)
		hit->why |= PB_HIT_ERROR;
	if (hit->start_ns && hit->end_ns > hit->start_ns && hit->end_ns - hit->start_ns >= rules->longer_than_ns)
		hit->why |= PB_HIT_SLOW;
	return found == PB_FIELD_END;
}

static bool read_log(const struct scanner *scanner, struct pb_view view, struct pb_hit *hit)
{
	enum pb_field_found found;
	struct pb_field_view field;

	while ((found = pb_field_next(&view, &field)) == PB_FIELD_FOUND) {
		switch (key_of(&field)) {
		case KEY(LOG_TIME, PB_WIRE_FIXED64):
			hit->start_ns = field.value;
			break;
		case KEY(LOG_OBSERVED, PB_WIRE_FIXED64):
			hit->end_ns = field.value;
			break;
		case KEY(LOG_SEVERITY, PB_WIRE_VARINT):
			hit->severity = (int32_t)field.value;
			break;
		case KEY(LOG_BODY, PB_WIRE_BYTES):
			if (!read_text(scanner, field.data, &hit->message))
				return false;
			break;
		case KEY(LOG_FLAGS, PB_WIRE_FIXED32):
			hit->flags = (uint32_t)field.value;
			break;
		case KEY(LOG_TRACE_ID, PB_WIRE_BYTES):
			take_id(hit, &field.data, hit->trace_id, sizeof(hit->trace_id), PB_HIT_TRACE_ID);
			break;
		case KEY(LOG_SPAN_ID, PB_WIRE_BYTES):
			take_id(hit, &field.data, hit->span_id, sizeof(hit->span_id), PB_HIT_SPAN_ID);
			break;
		case KEY(LOG_EVENT_NAME, PB_WIRE_BYTES):
			hit->name = range_of(scanner, &field.data);
			break;
		default:
			break;
		}
	}
	if (hit->severity >= scanner->rules->at_least)
		hit->why |= PB_HIT_SEVERE;
	return found == PB_FIELD_END;
}

static bool scan_record(struct scanner *scanner, struct pb_view view)
{
	struct pb_hit hit = { 0 };

	scanner->scan.records++;
	if (!(scanner->is_logs ? read_log(scanner, view, &hit) : read_span(scanner, view, &hit)))
		return false;
	if (scanner->is_own) {
		scanner->scan.own++;
		return true;
	}
	if (!hit.why)
		return true;
	if (!read_attributes(scanner, view, &hit))
		return false;
	if (scanner->scan.hits < scanner->capacity)
		scanner->hits[scanner->scan.hits] = hit;
	scanner->scan.hits++;
	return true;
}

static bool read_scope(struct pb_view view, bool *is_own)
{
	enum pb_field_found found;
	struct pb_field_view field;

	while ((found = pb_field_next(&view, &field)) == PB_FIELD_FOUND) {
		if (key_of(&field) == KEY(SCOPE_NAME, PB_WIRE_BYTES))
			*is_own = IS(&field.data, OWN_SCOPE);
	}
	return found == PB_FIELD_END;
}

/* One walk; `fixed`: what is_own holds is known, else it is learnt on the way. */
static bool scan_records(struct scanner *scanner, struct pb_view view, bool fixed)
{
	enum pb_field_found found;
	struct pb_field_view field;

	while ((found = pb_field_next(&view, &field)) == PB_FIELD_FOUND) {
		if (key_of(&field) == KEY(SCOPES_RECORDS, PB_WIRE_BYTES)) {
			if (!scan_record(scanner, field.data))
				return false;
		} else if (key_of(&field) == KEY(SCOPES_SCOPE, PB_WIRE_BYTES) && !fixed) {
			if (!read_scope(field.data, &scanner->is_own))
				return false;
		}
	}
	return found == PB_FIELD_END;
}

static bool scan_scope(struct scanner *scanner, struct pb_view view)
{
	struct pb_scan before = scanner->scan;
	uint64_t own;

	scanner->is_own = false;
	if (!scan_records(scanner, view, false))
		return false;
	own = scanner->scan.own - before.own;
	if (own == (scanner->is_own ? scanner->scan.records - before.records : 0))
		return true;
	scanner->scan = before; /* the scope came behind records */
	return scan_records(scanner, view, true);
}

static bool scan_resource(struct scanner *scanner, struct pb_view view)
{
	uint64_t first = scanner->scan.hits;
	enum pb_field_found found;
	struct pb_field_view field;

	scanner->resource = (struct pb_range){ 0 };
	while ((found = pb_field_next(&view, &field)) == PB_FIELD_FOUND) {
		if (key_of(&field) == KEY(RESOURCES_RESOURCE, PB_WIRE_BYTES))
			scanner->resource = range_of(scanner, &field.data);
		else if (key_of(&field) == KEY(RESOURCES_SCOPES, PB_WIRE_BYTES) && !scan_scope(scanner, field.data))
			return false;
	}
	/* The resource may have come behind its scopes. */
	for (uint64_t i = first; i < scanner->scan.hits && i < scanner->capacity; i++)
		scanner->hits[i].resource = scanner->resource;
	return found == PB_FIELD_END;
}

enum pb_status pb_otlp_scan(const uint8_t *request, uint64_t bytes, enum pb_scan_signal signal,
                            const struct pb_scan_rules *rules, struct pb_hit *hits, uint64_t capacity,
                            struct pb_scan *result)
{
	struct scanner scanner = { .request = request, .rules = rules, .hits = hits, .capacity = capacity };
	enum pb_field_found found;
	struct pb_view view = { request, request + bytes };
	struct pb_field_view field;

	if (signal != PB_SCAN_TRACES && signal != PB_SCAN_LOGS)
		return PB_INVALID;
	scanner.is_logs = signal == PB_SCAN_LOGS;
	scanner.attributes = scanner.is_logs ? LOG_ATTRIBUTES : SPAN_ATTRIBUTES;
	while ((found = pb_field_next(&view, &field)) == PB_FIELD_FOUND) {
		if (key_of(&field) == KEY(REQUEST_RESOURCES, PB_WIRE_BYTES) && !scan_resource(&scanner, field.data))
			return PB_MALFORMED;
	}
	if (found == PB_FIELD_MALFORMED)
		return PB_MALFORMED;
	*result = scanner.scan;
	return PB_OK;
}
