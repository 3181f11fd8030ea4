/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text_writer.c: numbers and quoted strings in strace's form.
 * Source: strace 6.1's output. What it is not: it knows no records.
 */
#include "text.h"

static void put_digits(struct pb_writer *out, uint64_t value, unsigned int bits, unsigned int least)
{
	static const char digits[] = "0123456789abcdef";
	char buffer[24];
	unsigned int at = sizeof(buffer), written = 0;

	do {
		buffer[--at] = digits[value & ((1u << bits) - 1)];
		value >>= bits;
		written++;
	} while (value || written < least);
	pb_put_bytes(out, buffer + at, written);
}

void pb_put_unsigned(struct pb_writer *out, uint64_t value)
{
	char buffer[20];
	unsigned int at = sizeof(buffer);

	do {
		buffer[--at] = (char)('0' + value % 10);
		value /= 10;
	} while (value);
	pb_put_bytes(out, buffer + at, sizeof(buffer) - at);
}

void pb_put_signed(struct pb_writer *out, int64_t value)
{
	if (value < 0)
		pb_put_char(out, '-');
	pb_put_unsigned(out, value < 0 ? 0 - (uint64_t)value : (uint64_t)value);
}

void pb_put_hex(struct pb_writer *out, uint64_t value)
{
	if (value)
		pb_put_bytes(out, "0x", 2);
	put_digits(out, value, 4, 1);
}

void pb_put_hex_wide(struct pb_writer *out, uint64_t value, unsigned int digits)
{
	put_digits(out, value, 4, digits);
}

void pb_put_address(struct pb_writer *out, uint64_t value)
{
	if (value)
		pb_put_hex(out, value);
	else
		pb_put_bytes(out, "NULL", 4);
}

void pb_put_octal(struct pb_writer *out, uint64_t value)
{
	if (value > 077)
		pb_put_char(out, '0');
	put_digits(out, value, 3, value > 077 ? 1 : 3);
}

/* The letter of a short escape, 0: none. */
static char short_escape(uint8_t c)
{
	switch (c) {
	case '"':
	case '\\':
		return (char)c;
	case '\f':
		return 'f';
	case '\n':
		return 'n';
	case '\r':
		return 'r';
	case '\t':
		return 't';
	case '\v':
		return 'v';
	default:
		return 0;
	}
}

/* The shortest octal form, all three digits when an octal digit follows (it would be read as one of them). */
static void put_octal_escape(struct pb_writer *out, uint8_t c, bool digit_follows)
{
	pb_put_char(out, '\\');
	if (digit_follows || c >> 6)
		pb_put_char(out, (char)('0' + (c >> 6)));
	if (digit_follows || c >> 3)
		pb_put_char(out, (char)('0' + (c >> 3 & 7)));
	pb_put_char(out, (char)('0' + (c & 7)));
}

void pb_put_escaped(struct pb_writer *out, const uint8_t *bytes, uint64_t size)
{
	for (uint64_t i = 0; i < size; i++) {
		uint8_t c = bytes[i];
		char letter = short_escape(c);

		if (letter) {
			pb_put_char(out, '\\');
			pb_put_char(out, letter);
		} else if (c >= ' ' && c < 127) {
			pb_put_char(out, (char)c);
		} else {
			put_octal_escape(out, c, i + 1 < size && bytes[i + 1] >= '0' && bytes[i + 1] <= '7');
		}
	}
}

void pb_put_quoted(struct pb_writer *out, const uint8_t *bytes, uint64_t size, bool cut)
{
	pb_put_char(out, '"');
	pb_put_escaped(out, bytes, size);
	pb_put_char(out, '"');
	if (cut)
		pb_put_bytes(out, "...", 3);
}

void pb_put_quoted_hex(struct pb_writer *out, const uint8_t *bytes, uint64_t size)
{
	pb_put_char(out, '"');
	for (uint64_t i = 0; i < size; i++) {
		pb_put_bytes(out, "\\x", 2);
		put_digits(out, bytes[i], 4, 2);
	}
	pb_put_char(out, '"');
}
