/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text_time.c: times with their date as a comment, in UTC: `{tv_sec=1, tv_nsec=2} (1970-01-01T00:00:01.000000002+0000)`.
 * What it is not: it knows no time zones; strace writes the local time of where it runs.
 * Source: strace 6.1's output; UTIME_NOW and UTIME_OMIT of linux/stat.h.
 */
#include "text.h"

enum { UTIME_NOW_VALUE = 0x3fffffff, UTIME_OMIT_VALUE = 0x3ffffffe, DAY_S = 86400, ERA_DAYS = 146097 };

/* Year, month and day of the proleptic Gregorian calendar: days are counted from March 1st of year 0. */
static void civil(int64_t days, int64_t *year, uint32_t *month, uint32_t *day)
{
	int64_t from_march = days + 719468;
	int64_t era = (from_march >= 0 ? from_march : from_march - ERA_DAYS + 1) / ERA_DAYS;
	uint32_t of_era = (uint32_t)(from_march - era * ERA_DAYS);
	uint32_t year_of_era = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
	uint32_t of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
	uint32_t shifted = (5 * of_year + 2) / 153;

	*day = of_year - (153 * shifted + 2) / 5 + 1;
	*month = shifted < 10 ? shifted + 3 : shifted - 9;
	*year = (int64_t)year_of_era + era * 400 + (*month <= 2);
}

static void put_padded(struct pb_writer *out, uint64_t value, unsigned int digits)
{
	char text[9];

	for (unsigned int i = digits; i-- > 0; value /= 10)
		text[i] = (char)('0' + value % 10);
	pb_put_bytes(out, text, digits);
}

static void put_date_text(struct pb_writer *out, int64_t seconds, uint64_t fraction, unsigned int digits,
                          const char *before, const char *after)
{
	int64_t days = seconds / DAY_S, left = seconds % DAY_S, year;
	uint32_t month, day;

	if (left < 0) {
		left += DAY_S;
		days--;
	}
	civil(days, &year, &month, &day);
	if (year < 0 || year > 9999)
		return;
	pb_put(out, before);
	put_padded(out, (uint64_t)year, 4);
	pb_put_char(out, '-');
	put_padded(out, month, 2);
	pb_put_char(out, '-');
	put_padded(out, day, 2);
	pb_put_char(out, 'T');
	put_padded(out, (uint64_t)left / 3600, 2);
	pb_put_char(out, ':');
	put_padded(out, (uint64_t)left / 60 % 60, 2);
	pb_put_char(out, ':');
	put_padded(out, (uint64_t)left % 60, 2);
	if (digits && fraction) {
		pb_put_char(out, '.');
		put_padded(out, fraction, digits);
	}
	pb_put(out, "+0000");
	pb_put(out, after);
}

/* `digits` of `fraction`: 9 nanoseconds, 6 microseconds, 0 none. */
void pb_put_date_comment(struct pb_writer *out, int64_t seconds, uint64_t fraction, unsigned int digits)
{
	put_date_text(out, seconds, fraction, digits, " /* ", " */");
}

void pb_put_date_result(struct pb_writer *out, int64_t seconds)
{
	put_date_text(out, seconds, 0, 0, " (", ")");
}

/* A struct timespec or timeval of utimensat, utimes. */
void pb_put_date(struct pb_writer *out, const struct pb_plan *plan, const uint8_t *bytes, bool microseconds)
{
	uint64_t most = microseconds ? 1000000 : 1000000000, fraction;
	int64_t seconds;

	(void)plan;
	memcpy(&seconds, bytes, sizeof(seconds));
	memcpy(&fraction, bytes + 8, sizeof(fraction));
	if (!microseconds && (fraction == UTIME_NOW_VALUE || fraction == UTIME_OMIT_VALUE)) {
		pb_put(out, fraction == UTIME_NOW_VALUE ? "UTIME_NOW" : "UTIME_OMIT");
		return;
	}
	pb_put(out, "{tv_sec=");
	pb_put_signed(out, seconds);
	pb_put(out, microseconds ? ", tv_usec=" : ", tv_nsec=");
	pb_put_unsigned(out, fraction);
	pb_put_char(out, '}');
	if ((seconds || fraction) && fraction < most)
		pb_put_date_comment(out, seconds, fraction, microseconds ? 6 : 9);
}
