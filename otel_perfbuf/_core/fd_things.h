/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fd_things.h: inside of the fd names: what a call makes of its fd, as text, and what its arguments say about it.
 * Source: fd_names.h; strace -yy's forms. What it is not: it carries no state from call to call.
 */
#ifndef PERFBUF_FD_THINGS_H
#define PERFBUF_FD_THINGS_H

#include "fd_names.h"
#include "text.h"

/* enum pb_fd_action of an event that is a system call, without loading it. */
uint8_t pb_fd_action_of(const struct pb_plan *plan, const struct pb_event *event);
/* The text of what the call makes: "</etc/hosts>"; false: not known. *thing gets its parts, but no text. */
bool pb_fd_thing_put(struct pb_writer *out, const struct pb_fd_names *names, const struct pb_call *call,
                     uint32_t process, struct pb_fd_thing *thing);
/* The same kept among the names' things: index + 1; 0: not known, or no room. */
uint32_t pb_fd_thing_make(struct pb_fd_names *names, const struct pb_call *call, uint32_t process);
/* A seed's. */
uint32_t pb_fd_thing_keep(struct pb_fd_names *names, const char *text, uint32_t bytes);
uint32_t pb_fd_on_exec(const struct pb_call *call, const struct pb_fd_rule *rule);
/* False: they lie in memory that was not captured. */
bool pb_fd_flags(const struct pb_call *call, const struct pb_fd_rule *rule, uint64_t *flags);
bool pb_fd_pair(const struct pb_call *call, const struct pb_fd_rule *rule, int32_t pair[2]);
bool pb_fd_fcntl_copies(const struct pb_call *call);
/* What fcntl and ioctl say of exec (enum pb_fd_exec); -1: nothing. */
int32_t pb_fd_marks(const struct pb_call *call, const struct pb_fd_rule *rule);

/* What was captured of an argument, at exit, else at enter; NULL: nothing of that kind. */
const struct pb_capture_view *pb_fd_captured(const struct pb_call *call, uint8_t argument, uint8_t kind);

/* fd_sockets.c: of socket and socketpair, whose first arguments are the same; of the calls that tell addresses. */
bool pb_fd_socket_new(struct pb_writer *out, const struct pb_call *call, struct pb_fd_thing *thing);
bool pb_fd_socket_put(struct pb_writer *out, const struct pb_fd_names *names, const struct pb_call *call,
                      uint32_t process, struct pb_fd_thing *thing);

/* fd_names.c: entries of the table; _for makes one, NULL: no room. */
struct pb_fd_entry *pb_fd_entry_find(const struct pb_fd_names *names, uint32_t process, int32_t fd);
struct pb_fd_entry *pb_fd_entry_for(struct pb_fd_names *names, uint32_t process, int32_t fd);
bool pb_fd_ends_gap(const struct pb_history *history, const struct pb_event *event);
bool pb_fd_begins_gap(const struct pb_event *event);
bool pb_fd_is_unknowable(const struct pb_call *call);

#endif
