#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A trigger datagram from a shell script, by socat. The kernel names the sender's process to the agent, and a process may
# trigger for itself only: so socat takes the script's place (exec), as its last step. usage: deploy.sh [REASON]
set -eu

socket=${OTEL_PERFBUF_TRIGGER_SOCKET:-/run/otel-perfbuf/trigger.sock}

# Asks for a dump of this script and what it started, then ends. The reason must need no escapes in JSON.
report() {
	exec socat -u STDIN "UNIX-SENDTO:$socket" <<-END
		{"v": 1, "kind": "manual", "service_name": "deploy", "reason": "$1"}
	END
}

cp /nonexistent/settings.json /tmp 2>/dev/null || report "${1:-the settings could not be copied}"
