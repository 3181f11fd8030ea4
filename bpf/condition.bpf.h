/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/*
 * condition.bpf.h: triggers that the kernel decides: a process's end, an OOM kill, an errno of a call, a call that took
 * too long. One that holds sends a struct pb_alert, which wakes the agent; one that does not costs a test of a flag.
 * What it is not: it makes no dump and knows no hold-off; only that one condition of one process and call does not wake
 * the agent more than a hundred times a second.
 */
#ifndef PERFBUF_CONDITION_BPF_H
#define PERFBUF_CONDITION_BPF_H

#include "page.bpf.h"
#include "capture.bpf.h"

enum { ALERT_EXIT_NONE, ALERT_EXIT_NONZERO, ALERT_EXIT_LIST };

/* Which process ends go to `alerts`: bit N of the mask = killed by signal N. */
const volatile u64 alert_signals_mask = 0;
const volatile u8 alert_exit_codes = ALERT_EXIT_NONE;
const volatile u64 alert_exit_list[4] = {}; /* bit N = exit code N */
const volatile u8 alert_all = 0;
const volatile u8 alert_oom_kill = 0;
const volatile u64 alert_errnos[PB_ALERT_ERRNOS / 64] = {}; /* bit N = errno N, of calls with PB_SYSCALL_ALERT_ERROR */
const volatile u64 alert_slow_ns = 0;                       /* of calls with PB_SYSCALL_ALERT_SLOW; 0: none */
const volatile u64 alert_interval_ns = 10000000;            /* between two alerts of one call of one process */

/* In the open call's .reserved, for sys_exit. */
enum { CALL_CAPTURES = 0xff, CALL_ALERT_ERROR = 0x100, CALL_ALERT_SLOW = 0x200 };

/* Forward, wakes at once: struct pb_alert. */
struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(key_size, sizeof(u32));
	__uint(value_size, sizeof(u32));
} alerts SEC(".maps");

struct turn_key {
	u32 tgid;
	u16 number;
	u16 kind;
};

struct turn {
	u64 last_ns;
	u32 suppressed;
	u32 reserved;
};

/* When a process's call sent its last alert. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct turn_key);
	__type(value, struct turn);
} alert_turns SEC(".maps");

static __always_inline int is_alert(s32 status)
{
	u32 signal = status & 0x7f, code = (status >> 8) & 0xff;

	if (alert_all)
		return 1;
	if (signal)
		return signal < 64 && (alert_signals_mask >> signal) & 1;
	if (alert_exit_codes == ALERT_EXIT_NONZERO)
		return code != 0;
	return alert_exit_codes == ALERT_EXIT_LIST && (alert_exit_list[code >> 6] >> (code & 63)) & 1;
}

static __always_inline void fill_alert(struct pb_alert *alert, const struct pb_sample *sample, u8 kind, u64 now)
{
	alert->time_ns = now;
	alert->instance = sample->instance;
	alert->process_start_ns = sample->process_start_ns;
	alert->tgid = sample->tgid;
	alert->tid = sample->tid;
	alert->kind = kind;
	__builtin_memcpy(alert->comm, sample->comm, sizeof(alert->comm));
}

static __always_inline void send_alert(void *ctx, struct pb_alert *alert)
{
	struct pb_stats *counts = get_stats();

	hold_cpu();
	if (bpf_perf_event_output(ctx, &alerts, BPF_F_CURRENT_CPU, alert, sizeof(*alert)) && counts)
		counts->lost_alerts++;
	release_cpu();
}

static __always_inline void alert_exit(void *ctx, struct page *page, const struct pb_span_ids *ids, s32 status, u64 now)
{
	struct pb_alert alert = { .status = status };

	fill_alert(&alert, &page->sample, PB_ALERT_EXIT, now);
	if (ids) {
		alert.span = *ids;
		alert.flags = PB_ALERT_SPAN;
	}
	send_alert(ctx, &alert);
}

static __always_inline void alert_oom(void *ctx, const struct pb_sample *sample)
{
	struct pb_alert alert = {};

	fill_alert(&alert, sample, PB_ALERT_OOM_KILL, sample->sent_ns);
	send_alert(ctx, &alert);
}

/* What of a call is to be judged at its end, for .reserved. */
static __always_inline u32 watched_call(u32 rule_flags)
{
	return (rule_flags & PB_SYSCALL_ALERT_ERROR ? CALL_ALERT_ERROR : 0) |
	       (rule_flags & PB_SYSCALL_ALERT_SLOW ? CALL_ALERT_SLOW : 0);
}

/* Whether it is this condition's turn; *suppressed: how many were not sent since the last that was. */
static __always_inline int take_turn(u32 tgid, u32 number, u8 kind, u64 now, u32 *suppressed)
{
	struct turn_key key = { .tgid = tgid, .number = number, .kind = kind };
	struct turn first = { .last_ns = now }, *turn = bpf_map_lookup_elem(&alert_turns, &key);

	*suppressed = 0;
	if (!turn) {
		bpf_map_update_elem(&alert_turns, &key, &first, BPF_ANY);
		return 1;
	}
	if (now - turn->last_ns < alert_interval_ns) {
		__sync_fetch_and_add(&turn->suppressed, 1);
		return 0;
	}
	turn->last_ns = now;
	*suppressed = turn->suppressed;
	turn->suppressed = 0;
	return 1;
}

/* The call that has just ended; it still stands in the page's fixed place. */
static __noinline void judge_call(void *ctx, struct page *page, s64 result, u64 now)
{
	const struct pb_syscall *call = &page->head.open;
	u64 duration = now - call->record.time_ns, error = -result;
	u32 watched = call->reserved;
	struct pb_alert alert = {};
	u8 kind = 0;

	if (watched & CALL_ALERT_ERROR && error > 0 && error < PB_ALERT_ERRNOS &&
	    (alert_errnos[error >> 6] >> (error & 63)) & 1)
		kind = PB_ALERT_SYSCALL_ERROR;
	else if (watched & CALL_ALERT_SLOW && alert_slow_ns && duration > alert_slow_ns)
		kind = PB_ALERT_SYSCALL_LATENCY;
	if (!kind || !take_turn(page->sample.tgid, call->number, kind, now, &alert.suppressed))
		return;
	fill_alert(&alert, &page->sample, kind, now);
	bpf_get_current_comm(alert.comm, sizeof(alert.comm));
	alert.sequence = call->record.sequence;
	alert.duration_ns = duration;
	alert.result = result;
	alert.number = call->number;
	if (call->record.flags & PB_FLAG_SPAN) {
		alert.flags = PB_ALERT_SPAN;
		alert.span = page->head.open_span;
	}
	send_alert(ctx, &alert);
}

/* The call that a page's thread is in, if it has been in it for longer than alert_slow_ns. 0: it has not. */
static __always_inline int is_slow_call(const struct pb_page_head *head, u64 now)
{
	const struct pb_syscall *call = &head->open;

	return head->flags & PB_PAGE_OPEN && call->reserved & CALL_ALERT_SLOW && alert_slow_ns &&
	       now > call->record.time_ns && now - call->record.time_ns > alert_slow_ns;
}

#endif
