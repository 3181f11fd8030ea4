/* SPDX-License-Identifier: Apache-2.0 */
/* otlp_record.h: inside of the encoder: one event to one LogRecord. */
#ifndef PERFBUF_OTLP_RECORD_H
#define PERFBUF_OTLP_RECORD_H

#include "otlp.h"
#include "wire.h"

/* Writes event as element `field` of the message that wire is in; at most PB_RECORD_MOST_BYTES. */
void pb_otlp_record(struct pb_wire *wire, uint32_t field, const struct pb_history *history,
                    struct pb_encoding *encoding, const struct pb_event *event);

#endif
