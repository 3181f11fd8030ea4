/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text_scalar.c: kinds whose text needs the value alone: integers, flags, values, modes, signals.
 * Source: strace 6.1's output; the names are the plan's. What it is not: it touches no captured memory.
 */
#include "text.h"

enum { AT_FDCWD_VALUE = -100, FIRST_REALTIME_SIGNAL = 32, LAST_SIGNAL = 64 };

static const struct pb_table no_table;

const struct pb_table *pb_plan_table(const struct pb_plan *plan, uint32_t index)
{
	return index < plan->table_count ? &plan->tables[index] : &no_table;
}

const char *pb_name_find(const struct pb_name *rows, uint32_t count, uint64_t value)
{
	uint32_t low = 0, high = count;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (rows[middle].value < value)
			low = middle + 1;
		else
			high = middle;
	}
	return low < count && rows[low].value == value ? rows[low].name : NULL;
}

static void put_unknown(struct pb_writer *out, const struct pb_table *table, uint64_t value)
{
	if (table->unknown && !strcmp(table->unknown, "_IOC")) {
		pb_put_ioctl_number(out, (uint32_t)value);
		return;
	}
	pb_put_hex(out, value);
	if (table->unknown) {
		pb_put(out, " /* ");
		pb_put(out, table->unknown);
		pb_put(out, " */");
	}
}

void pb_put_enum(struct pb_writer *out, const struct pb_table *table, uint64_t value)
{
	const char *name = pb_name_find(table->rows, table->count, value);

	if (!name)
		name = pb_name_find(table->rows, table->count, (uint32_t)value);
	if (name)
		pb_put(out, name);
	else /* a sign-extended int, or a handler's address among SIG_DFL and SIG_IGN */
		put_unknown(out, table, value >> 32 == UINT32_MAX ? (uint32_t)value : value);
}

/* Names of the bits in *rest, which loses them. `named`: something stands in front. True: something stands now. */
static bool put_bits(struct pb_writer *out, const struct pb_table *table, uint64_t *rest, bool named)
{
	for (uint32_t i = 0; i < table->count && *rest; i++) {
		uint64_t bits = table->rows[i].value;

		if (!(bits & ~table->mask) || (*rest & bits) != bits)
			continue;
		if (named)
			pb_put_char(out, '|');
		pb_put(out, table->rows[i].name);
		*rest &= ~bits;
		named = true;
	}
	return named;
}

static void put_rest(struct pb_writer *out, const struct pb_table *table, uint64_t rest, bool named)
{
	if (rest && named) {
		pb_put_char(out, '|');
		pb_put_hex(out, rest);
	} else if (rest) {
		put_unknown(out, table, rest);
	}
}

void pb_put_flags(struct pb_writer *out, const struct pb_table *table, uint64_t value)
{
	bool named;

	if (!value) {
		for (uint32_t i = 0; i < table->count; i++) {
			if (!table->rows[i].value) {
				pb_put(out, table->rows[i].name);
				return;
			}
		}
		pb_put_char(out, '0');
		return;
	}
	named = put_bits(out, table, &value, false);
	put_rest(out, table, value, named);
}

void pb_put_flags_value(struct pb_writer *out, const struct pb_table *table, uint64_t value)
{
	bool named = false;

	for (uint32_t i = 0; i < table->count && !named; i++) {
		if (table->rows[i].value & ~table->mask)
			break; /* rows of the value come first */
		if (table->rows[i].value != (value & table->mask))
			continue;
		pb_put(out, table->rows[i].name);
		value &= ~table->mask;
		named = true;
	}
	if (!value && !named) {
		pb_put_char(out, '0');
		return;
	}
	named = put_bits(out, table, &value, named);
	put_rest(out, table, value, named);
}

const char *pb_signal_name(const struct pb_plan *plan, int32_t number, char *space, size_t space_bytes)
{
	struct pb_writer out = { space, 0, space_bytes - 1 };

	if (number > 0 && number < FIRST_REALTIME_SIGNAL)
		return pb_name_find(plan->signals, plan->signal_count, (uint64_t)number);
	if (number < FIRST_REALTIME_SIGNAL || number > LAST_SIGNAL)
		return NULL;
	/* the kernel's first is 32; libc's SIGRTMIN is another */
	if (number == FIRST_REALTIME_SIGNAL)
		return "SIGRTMIN";
	pb_put(&out, "SIGRT_");
	pb_put_unsigned(&out, (uint64_t)(number - FIRST_REALTIME_SIGNAL));
	space[out.size] = 0;
	return space;
}

void pb_put_signal(struct pb_writer *out, const struct pb_plan *plan, int32_t number)
{
	char space[16];
	const char *name = pb_signal_name(plan, number, space, sizeof(space));

	if (name)
		pb_put(out, name);
	else
		pb_put_signed(out, number);
}

static void put_clone_flags(struct pb_writer *out, const struct pb_plan *plan, uint64_t value, uint32_t table)
{
	uint64_t flags = value & ~(uint64_t)255;

	if (flags)
		pb_put_flags(out, pb_plan_table(plan, table), flags);
	if (flags && value & 255)
		pb_put_char(out, '|');
	if (!flags || value & 255)
		pb_put_signal(out, plan, (int32_t)(value & 255));
}

static void put_file_mode(struct pb_writer *out, uint64_t value)
{
	static const char *const types[16] = {
		[1] = "S_IFIFO", [2] = "S_IFCHR",  [4] = "S_IFDIR",   [6] = "S_IFBLK",
		[8] = "S_IFREG", [10] = "S_IFLNK", [12] = "S_IFSOCK",
	};
	static const char *const names[] = { "S_ISUID", "S_ISGID", "S_ISVTX" };
	static const uint32_t bits[] = { 04000, 02000, 01000 };
	const char *type = types[value >> 12 & 15];

	bool any = type != NULL;

	value &= 0xffff;
	if (!type && value >> 12) {
		pb_put_octal(out, value);
		return;
	}
	if (type)
		pb_put(out, type);
	for (uint32_t i = 0; i < 3; i++) {
		if (!(value & bits[i]))
			continue;
		if (any)
			pb_put_char(out, '|');
		any = true;
		pb_put(out, names[i]);
	}
	if (any)
		pb_put_char(out, '|');
	pb_put_octal(out, value & 0777);
}

static void put_enum_number(struct pb_writer *out, const struct pb_table *table, uint64_t value, bool hex)
{
	const char *name = pb_name_find(table->rows, table->count, hex ? value : (uint32_t)value);

	if (hex)
		pb_put_hex(out, value);
	else
		pb_put_signed(out, (int32_t)value);
	pb_put(out, " /* ");
	pb_put(out, name ? name : table->unknown ? table->unknown : "???");
	pb_put(out, " */");
}

static void put_limit(struct pb_writer *out, uint64_t value)
{
	if (value == UINT64_MAX) {
		pb_put(out, "RLIM64_INFINITY");
	} else if (value > 1024 && value % 1024 == 0) {
		pb_put_unsigned(out, value / 1024);
		pb_put(out, "*1024");
	} else {
		pb_put_unsigned(out, value);
	}
}

/* The kernel's 32-bit encoding of a device number. */
static void put_device(struct pb_writer *out, uint64_t value)
{
	pb_put(out, "makedev(");
	pb_put_hex(out, (value >> 8 & 0xfff) | (value >> 32 & ~0xfffull));
	pb_put(out, ", ");
	pb_put_hex(out, (value & 0xff) | (value >> 12 & 0xffffff00));
	pb_put_char(out, ')');
}

/* IPC_CREAT|0x1000|21<<SHM_HUGE_SHIFT|0644: the table's mask are bits that are a number of their own. */
static void put_ipc_flags(struct pb_writer *out, const struct pb_table *table, uint64_t value)
{
	uint64_t number = value & table->mask, mode = value & 0777, rest = value & ~table->mask & ~0777ull;
	bool named = put_bits(out, table, &rest, false);

	if (rest) {
		if (named)
			pb_put_char(out, '|');
		pb_put_hex(out, rest);
		named = true;
	}
	if (number) {
		if (named)
			pb_put_char(out, '|');
		pb_put_unsigned(out, number / (table->mask & -table->mask));
		pb_put(out, "<<SHM_HUGE_SHIFT");
		named = true;
	}
	if (named)
		pb_put_char(out, '|');
	pb_put_octal(out, mode);
}

static void put_priority(struct pb_writer *out, const struct pb_table *table, uint32_t value)
{
	pb_put(out, "IOPRIO_PRIO_VALUE(");
	pb_put_enum(out, table, value >> 13);
	pb_put(out, ", ");
	pb_put_unsigned(out, value & 8191);
	pb_put_char(out, ')');
}

static void put_quota_command(struct pb_writer *out, const struct pb_plan *plan, const struct pb_table *table,
                              uint32_t value)
{
	static const char *const types[] = { "USRQUOTA", "GRPQUOTA", "PRJQUOTA" };

	(void)plan;
	pb_put(out, "QCMD(");
	pb_put_enum(out, table, value >> 8);
	pb_put(out, ", ");
	if ((value & 255) < 3) {
		pb_put(out, types[value & 255]);
	} else {
		pb_put_hex(out, value & 255);
		pb_put(out, " /* ???QUOTA */");
	}
	pb_put_char(out, ')');
}

static void put_errno(struct pb_writer *out, const struct pb_plan *plan, uint64_t value)
{
	const char *name = value && value <= UINT32_MAX ? pb_error_name(plan, (uint32_t)value, NULL) : NULL;

	if (name)
		pb_put(out, name);
	else
		pb_put_unsigned(out, value);
}

bool pb_put_scalar(struct pb_writer *out, const struct pb_plan *plan, uint8_t kind, uint64_t value, uint32_t table)
{
	int64_t integer;

	if (pb_scalar_integer(kind, value, &integer)) {
		pb_put_signed(out, integer);
		return true;
	}
	switch (kind) {
	case PB_ARG_DIRFD:
		pb_put(out, "AT_FDCWD");
		return true;
	case PB_ARG_ULONG:
		pb_put_unsigned(out, value);
		return true;
	case PB_ARG_HEX:
		pb_put_hex(out, value);
		return true;
	case PB_ARG_HEX32:
		pb_put_hex(out, (uint32_t)value);
		return true;
	case PB_ARG_POINTER:
		pb_put_address(out, value);
		return true;
	case PB_ARG_FLAGS:
		pb_put_flags(out, pb_plan_table(plan, table), value);
		return true;
	case PB_ARG_FLAGS_VALUE:
		pb_put_flags_value(out, pb_plan_table(plan, table), value);
		return true;
	case PB_ARG_ENUM:
		pb_put_enum(out, pb_plan_table(plan, table), value);
		return true;
	case PB_ARG_MODE:
	case PB_ARG_OPEN_MODE:
		pb_put_octal(out, value & 0xffff);
		return true;
	case PB_ARG_FILE_MODE:
		put_file_mode(out, value);
		return true;
	case PB_ARG_SIGNAL:
		pb_put_signal(out, plan, (int32_t)value);
		return true;
	case PB_ARG_CLONE_FLAGS:
		put_clone_flags(out, plan, value, table);
		return true;
	case PB_ARG_ENUM_NUMBER:
	case PB_ARG_ENUM_HEX:
		put_enum_number(out, pb_plan_table(plan, table), value, kind == PB_ARG_ENUM_HEX);
		return true;
	case PB_ARG_LIMIT:
		put_limit(out, value);
		return true;
	case PB_ARG_DEVICE:
		put_device(out, value);
		return true;
	case PB_ARG_HANDLER:
		if (value < 2)
			pb_put(out, value ? "SIG_IGN" : "SIG_DFL");
		else
			pb_put_hex(out, value);
		return true;
	case PB_ARG_IPC_FLAGS:
		put_ipc_flags(out, pb_plan_table(plan, table), value);
		return true;
	case PB_ARG_PRIORITY:
		put_priority(out, pb_plan_table(plan, table), (uint32_t)value);
		return true;
	case PB_ARG_QUOTA_COMMAND:
		put_quota_command(out, plan, pb_plan_table(plan, table), (uint32_t)value);
		return true;
	case PB_ARG_ERRNO:
		put_errno(out, plan, value);
		return true;
	case PB_ARG_OCTAL:
		pb_put_octal(out, value);
		return true;
	default:
		return false;
	}
}

bool pb_scalar_integer(uint8_t kind, uint64_t value, int64_t *integer)
{
	switch (kind) {
	case PB_ARG_SIGNED:
	case PB_ARG_FD:
		*integer = (int32_t)value;
		return true;
	case PB_ARG_DIRFD:
		*integer = (int32_t)value;
		return *integer != AT_FDCWD_VALUE;
	case PB_ARG_UNSIGNED:
		*integer = (uint32_t)value;
		return true;
	case PB_ARG_UID: /* -1 changes nothing */
		*integer = (uint32_t)value == UINT32_MAX ? -1 : (int64_t)(uint32_t)value;
		return true;
	case PB_ARG_LONG:
	case PB_ARG_OFFSET:
		*integer = (int64_t)value;
		return true;
	case PB_ARG_ULONG:
		*integer = (int64_t)value;
		return value <= INT64_MAX;
	default:
		return false;
	}
}
