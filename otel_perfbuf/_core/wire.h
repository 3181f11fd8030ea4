/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire.h: protobuf's wire format, written forward with minimal varints, and OTLP's KeyValue.
 * Source: protobuf.dev/programming-guides/encoding; opentelemetry-proto common/v1/common.proto.
 * Nothing here checks room: the caller reserves PB_RECORD_MOST_BYTES before a record, and every part is bounded.
 */
#ifndef PERFBUF_WIRE_H
#define PERFBUF_WIRE_H

#include <stdint.h>
#include <string.h>

/* A record at most: body and arguments (PB_LINE_BYTES each), a path whose every byte became U+FFFD, and the rest. */
enum { PB_RECORD_MOST_BYTES = 65536, PB_NAME_MOST_BYTES = 128 };

struct pb_wire {
	uint8_t *at;
};

enum pb_wire_type { PB_WIRE_VARINT = 0, PB_WIRE_FIXED64 = 1, PB_WIRE_BYTES = 2, PB_WIRE_FIXED32 = 5 };

/* AnyValue's fields */
enum { PB_ANY_STRING = 1, PB_ANY_INT = 3, PB_ANY_KVLIST = 6 };

static inline uint32_t pb_varint_bytes(uint64_t value)
{
	return ((uint32_t)(63 - __builtin_clzll(value | 1)) + 7) / 7;
}

static inline uint8_t *pb_varint_write(uint8_t *at, uint64_t value)
{
	while (value >= 128) {
		*at++ = (uint8_t)(value | 128);
		value >>= 7;
	}
	*at++ = (uint8_t)value;
	return at;
}

static inline void pb_wire_tag(struct pb_wire *wire, uint32_t field, enum pb_wire_type type)
{
	*wire->at++ = (uint8_t)(field << 3 | type); /* all fields here are below 16 */
}

static inline void pb_wire_varint(struct pb_wire *wire, uint32_t field, uint64_t value)
{
	pb_wire_tag(wire, field, PB_WIRE_VARINT);
	wire->at = pb_varint_write(wire->at, value);
}

static inline void pb_wire_fixed64(struct pb_wire *wire, uint32_t field, uint64_t value)
{
	pb_wire_tag(wire, field, PB_WIRE_FIXED64);
	memcpy(wire->at, &value, sizeof(value));
	wire->at += sizeof(value);
}

static inline void pb_wire_fixed32(struct pb_wire *wire, uint32_t field, uint32_t value)
{
	pb_wire_tag(wire, field, PB_WIRE_FIXED32);
	memcpy(wire->at, &value, sizeof(value));
	wire->at += sizeof(value);
}

static inline void pb_wire_bytes(struct pb_wire *wire, uint32_t field, const void *bytes, uint32_t size)
{
	pb_wire_tag(wire, field, PB_WIRE_BYTES);
	wire->at = pb_varint_write(wire->at, size);
	memcpy(wire->at, bytes, size);
	wire->at += size;
}

/* A message whose length is not known yet: one byte is left for it, what follows moves when it needs more. */
static inline uint8_t *pb_wire_open(struct pb_wire *wire, uint32_t field)
{
	pb_wire_tag(wire, field, PB_WIRE_BYTES);
	return wire->at++;
}

static inline void pb_wire_close(struct pb_wire *wire, uint8_t *length)
{
	uint64_t size = (uint64_t)(wire->at - length - 1);
	uint32_t more = pb_varint_bytes(size) - 1;

	if (more)
		memmove(length + 1 + more, length + 1, size);
	pb_varint_write(length, size);
	wire->at += more;
}

/* KeyValue{key, value: AnyValue{string_value}} as element `field`. */
static inline void pb_wire_string(struct pb_wire *wire, uint32_t field, const char *key, uint32_t key_bytes,
                                  const char *text, uint32_t bytes)
{
	uint32_t any = 1 + pb_varint_bytes(bytes) + bytes;
	uint32_t pair = 1 + pb_varint_bytes(key_bytes) + key_bytes + 1 + pb_varint_bytes(any) + any;

	pb_wire_tag(wire, field, PB_WIRE_BYTES);
	wire->at = pb_varint_write(wire->at, pair);
	pb_wire_bytes(wire, 1, key, key_bytes);
	pb_wire_tag(wire, 2, PB_WIRE_BYTES);
	wire->at = pb_varint_write(wire->at, any);
	pb_wire_bytes(wire, PB_ANY_STRING, text, bytes);
}

/* KeyValue{key, value: AnyValue{int_value}} as element `field`; negative ints take ten bytes, as protobuf has it. */
static inline void pb_wire_int(struct pb_wire *wire, uint32_t field, const char *key, uint32_t key_bytes, int64_t value)
{
	uint32_t any = 1 + pb_varint_bytes((uint64_t)value);

	pb_wire_tag(wire, field, PB_WIRE_BYTES);
	wire->at = pb_varint_write(wire->at, 1 + pb_varint_bytes(key_bytes) + key_bytes + 2 + any);
	pb_wire_bytes(wire, 1, key, key_bytes);
	pb_wire_tag(wire, 2, PB_WIRE_BYTES);
	*wire->at++ = (uint8_t)any;
	pb_wire_varint(wire, PB_ANY_INT, (uint64_t)value);
}

#endif
