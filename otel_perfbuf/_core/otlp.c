/* SPDX-License-Identifier: Apache-2.0 */
/*
 * otlp.c: the next time slice of selected events to one ExportLogsServiceRequest.
 * Source: opentelemetry-proto collector/logs/v1/logs_service.proto, logs/v1/logs.proto.
 *
 * First every record is encoded, one behind the other, into the scratch memory, and hung to its process's list; then
 * the sizes of all messages are known and each process's records are copied behind their resource. The slice ends
 * before the record that could take the request over a limit (messages' own heads counted at their largest).
 */
#include "otlp_record.h"
#include "text.h"

enum {
	SLOT_BUCKETS = 2 * PB_CHUNK_RECORDS, /* a power of two: at most half of them are used */
	HEADS_BYTES = 4 * (1 + 4),           /* of ResourceLogs, Resource, ScopeLogs, InstrumentationScope, at most */
	NONE = -1,
};

/* One process of a chunk and the list of its records. */
struct slot {
	uint32_t process;
	int32_t first, last; /* records */
	uint32_t bytes;      /* of its records, heads included */
};

struct piece {
	uint32_t offset, bytes;
	int32_t next; /* of the same process */
};

struct chunk {
	uint8_t *records; /* encoded, one behind the other */
	struct pb_wire wire;
	uint64_t heads; /* bytes of resources, scopes and heads, at most */
	uint32_t slot_count, piece_count;
	struct slot *slots;
	struct piece *pieces;
	int32_t *buckets; /* process -> slot, open addressing */
};

enum {
	RECORDS_BYTES = PB_CHUNK_BYTES + PB_RECORD_MOST_BYTES,
	TABLES_BYTES = PB_CHUNK_RECORDS * (sizeof(struct slot) + sizeof(struct piece)) + SLOT_BUCKETS * sizeof(int32_t),
};

_Static_assert(RECORDS_BYTES + TABLES_BYTES <= 2 * PB_CHUNK_BYTES, "the scratch memory holds records and tables");

static void chunk_open(struct chunk *chunk, uint8_t *scratch)
{
	uint8_t *tables = scratch + RECORDS_BYTES;

	*chunk = (struct chunk){ .records = scratch, .wire = { scratch } };
	chunk->slots = (void *)tables;
	chunk->pieces = (void *)(tables + PB_CHUNK_RECORDS * sizeof(struct slot));
	chunk->buckets = (void *)(tables + PB_CHUNK_RECORDS * (sizeof(struct slot) + sizeof(struct piece)));
	memset(chunk->buckets, 0xff, SLOT_BUCKETS * sizeof(int32_t));
}

/* The bucket that holds the process's slot, or the free one where it belongs. */
static int32_t *find_bucket(const struct chunk *chunk, uint32_t process)
{
	uint32_t at = process * 2654435761u % SLOT_BUCKETS;

	while (chunk->buckets[at] != NONE && chunk->slots[chunk->buckets[at]].process != process)
		at = (at + 1) % SLOT_BUCKETS;
	return &chunk->buckets[at];
}

static void hang(struct chunk *chunk, int32_t *bucket, uint32_t process, uint8_t *start)
{
	struct piece *piece = &chunk->pieces[chunk->piece_count];
	struct slot *slot;

	*piece = (struct piece){ (uint32_t)(start - chunk->records), (uint32_t)(chunk->wire.at - start), NONE };
	if (*bucket == NONE) {
		*bucket = (int32_t)chunk->slot_count++;
		slot = &chunk->slots[*bucket];
		*slot = (struct slot){ process, (int32_t)chunk->piece_count, NONE, 0 };
	} else {
		slot = &chunk->slots[*bucket];
		chunk->pieces[slot->last].next = (int32_t)chunk->piece_count;
	}
	slot->last = (int32_t)chunk->piece_count++;
	slot->bytes += piece->bytes;
}

/* Encodes one event. False: it does not fit into this chunk any more (and nothing was kept of it). */
static bool chunk_add(struct chunk *chunk, const struct pb_history *history, struct pb_encoding *encoding,
                      const struct pb_event *event)
{
	uint32_t process = history->threads[event->thread].process;
	int32_t *bucket = find_bucket(chunk, process);
	uint64_t heads = *bucket == NONE ? encoding->resources[process].size + encoding->scope.size + HEADS_BYTES : 0;
	uint64_t redactions = encoding->redactions;
	uint8_t *start = chunk->wire.at;

	if (chunk->piece_count == PB_CHUNK_RECORDS)
		return false;
	pb_otlp_record(&chunk->wire, 2, history, encoding, event);
	if ((uint64_t)(chunk->wire.at - chunk->records) + chunk->heads + heads > PB_CHUNK_BYTES) {
		chunk->wire.at = start;
		encoding->redactions = redactions;
		return false;
	}
	chunk->heads += heads;
	hang(chunk, bucket, process, start);
	return true;
}

static uint64_t field_bytes(uint64_t size)
{
	return 1 + pb_varint_bytes(size) + size;
}

static void put_message(struct pb_wire *wire, uint32_t field, const struct pb_bytes *message)
{
	pb_wire_bytes(wire, field, message->data ? message->data : (const uint8_t *)"", (uint32_t)message->size);
}

static void put_process(struct pb_wire *wire, const struct chunk *chunk, const struct pb_encoding *encoding,
                        const struct slot *slot)
{
	const struct pb_bytes *resource = &encoding->resources[slot->process];
	uint64_t scope_logs = field_bytes(encoding->scope.size) + slot->bytes;

	pb_wire_tag(wire, 1, PB_WIRE_BYTES);
	wire->at = pb_varint_write(wire->at, field_bytes(resource->size) + field_bytes(scope_logs));
	put_message(wire, 1, resource);
	pb_wire_tag(wire, 2, PB_WIRE_BYTES);
	wire->at = pb_varint_write(wire->at, scope_logs);
	put_message(wire, 1, &encoding->scope);
	for (int32_t at = slot->first; at != NONE; at = chunk->pieces[at].next) {
		memcpy(wire->at, chunk->records + chunk->pieces[at].offset, chunk->pieces[at].bytes);
		wire->at += chunk->pieces[at].bytes;
	}
}

static bool valid(const struct pb_history *history, const struct pb_encoding *encoding)
{
	if (!history->joined || !encoding->plan || (history->process_count && !encoding->resources))
		return false;
	/* a resource and a scope leave room for at least one record of the largest size */
	if (encoding->scope.size > PB_CHUNK_BYTES / 4)
		return false;
	for (uint64_t i = 0; i < history->process_count; i++) {
		if (encoding->resources[i].size > PB_CHUNK_BYTES / 4)
			return false;
	}
	return true;
}

enum pb_status pb_otlp_encode_chunk(const struct pb_history *history, struct pb_encoding *encoding, uint64_t *cursor,
                                    uint8_t *scratch, uint64_t scratch_capacity, uint8_t *out, uint64_t out_capacity,
                                    uint64_t *bytes, uint32_t *records)
{
	struct pb_wire wire = { out };
	struct chunk chunk;
	uint64_t at;

	if (!history || !encoding || !cursor || !scratch || !out || !bytes || !records || (uintptr_t)scratch % 8 ||
	    !valid(history, encoding))
		return PB_INVALID;
	if (scratch_capacity < 2 * PB_CHUNK_BYTES || out_capacity < PB_CHUNK_BYTES)
		return PB_NO_ROOM;
	chunk_open(&chunk, scratch);
	for (at = *cursor; at < history->event_count; at++) {
		if (!(history->events[at].flags & PB_EVENT_SELECTED))
			continue;
		if (encoding->fds)
			pb_fd_names_pass(encoding->fds, at);
		if (!chunk_add(&chunk, history, encoding, &history->events[at]))
			break;
	}
	for (uint32_t i = 0; i < chunk.slot_count; i++)
		put_process(&wire, &chunk, encoding, &chunk.slots[i]);
	*cursor = at;
	*bytes = (uint64_t)(wire.at - out);
	*records = chunk.piece_count;
	return PB_OK;
}
