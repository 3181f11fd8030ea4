/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text_tty.c: what ioctl alone has: numbers without a name, and the words of a struct termios that are values and flags
 * at once: delays, speed and character size.
 * Source: strace 6.1's output (without a flag its text ends in "|"); asm-generic/ioctl.h, asm-generic/termbits.h.
 */
#include "text.h"

struct choice {
	uint32_t mask;
	uint32_t count;
	const char *names[4];
};

static const struct choice delays[] = {
	{ 0x0100, 2, { "NL0", "NL1" } },
	{ 0x0600, 4, { "CR0", "CR1", "CR2", "CR3" } },
	{ 0x1800, 4, { "TAB0", "TAB1", "TAB2", "TAB3" } },
	{ 0x2000, 2, { "BS0", "BS1" } },
	{ 0x4000, 2, { "VT0", "VT1" } },
	{ 0x8000, 2, { "FF0", "FF1" } },
};

static const char *const slow[16] = {
	"B0",   "B50",   "B75",   "B110",  "B134",  "B150",  "B200",   "B300",
	"B600", "B1200", "B1800", "B2400", "B4800", "B9600", "B19200", "B38400",
};
static const char *const fast[16] = {
	"BOTHER",   "B57600",   "B115200",  "B230400",  "B460800",  "B500000",  "B576000",  "B921600",
	"B1000000", "B1152000", "B1500000", "B2000000", "B2500000", "B3000000", "B3500000", "B4000000",
};

/* Names of single bits from `first` on, joined by |. */
static void put_bits(struct pb_writer *out, uint32_t value, uint32_t first, const char *const *names, uint32_t count)
{
	bool any = false;

	for (uint32_t i = 0; i < count; i++) {
		if (!names[i] || !(value >> (first + i) & 1))
			continue;
		if (any)
			pb_put_char(out, '|');
		any = true;
		pb_put(out, names[i]);
	}
}

void pb_put_tty_output(struct pb_writer *out, uint32_t value)
{
	static const char *const flags[] = { "OPOST", "OLCUC", "ONLCR", "OCRNL", "ONOCR", "ONLRET", "OFILL", "OFDEL" };

	for (uint32_t i = 0; i < sizeof(delays) / sizeof(delays[0]); i++) {
		uint32_t low = delays[i].mask & -delays[i].mask;

		pb_put(out, delays[i].names[(value & delays[i].mask) / low]);
		pb_put_char(out, '|');
	}
	put_bits(out, value, 0, flags, 8);
}

void pb_put_tty_control(struct pb_writer *out, uint32_t value)
{
	static const char *const sizes[] = { "CS5", "CS6", "CS7", "CS8" };
	static const char *const flags[] = { "CSTOPB", "CREAD", "PARENB", "PARODD", "HUPCL", "CLOCAL" };

	pb_put(out, value & 0x1000 ? fast[value & 15] : slow[value & 15]);
	pb_put_char(out, '|');
	pb_put(out, sizes[value >> 4 & 3]);
	pb_put_char(out, '|');
	put_bits(out, value, 6, flags, 6);
	if (value & 0x40000000)
		pb_put(out, value & 0xfc0 ? "|CMSPAR" : "CMSPAR");
	if (value & 0x80000000)
		pb_put(out, value & 0x40000fc0 ? "|CRTSCTS" : "CRTSCTS");
}

/* _IOC(_IOC_READ, 0x45, 0x2, 0x4): what the number is made of. */
void pb_put_ioctl_number(struct pb_writer *out, uint32_t value)
{
	static const char *const ways[] = { "_IOC_NONE", "_IOC_WRITE", "_IOC_READ", "_IOC_READ|_IOC_WRITE" };

	pb_put(out, "_IOC(");
	pb_put(out, ways[value >> 30]);
	pb_put(out, ", ");
	pb_put_hex(out, value >> 8 & 0xff);
	pb_put(out, ", ");
	pb_put_hex(out, value & 0xff);
	pb_put(out, ", ");
	pb_put_hex(out, value >> 16 & 0x3fff);
	pb_put_char(out, ')');
}
