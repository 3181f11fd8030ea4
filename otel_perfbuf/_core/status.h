/* SPDX-License-Identifier: Apache-2.0 */
/* status.h: what every function of the core returns. Results go through last parameters, untouched on a fault. */
#ifndef PERFBUF_STATUS_H
#define PERFBUF_STATUS_H

/* cffi: begin */
enum pb_status {
	PB_OK = 0,
	PB_NO_ROOM = 1,   /* the caller's memory is too small: nothing was written, grow it and call again */
	PB_INVALID = 2,   /* an argument that no caller may give */
	PB_MALFORMED = 3, /* the bytes are not what they are said to be */
};
/* cffi: end */

#endif
