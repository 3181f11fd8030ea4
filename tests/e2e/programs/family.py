# SPDX-License-Identifier: Apache-2.0
"""A family of processes, each with a service name of its own, made in every way; prints their pids as JSON, exits 1.

spawn: a shell by vfork/posix_spawn with a grandchild in the background; fork: fork and exec with another environment;
thread: exec by a thread that is not the leader; orphan: a grandchild whose parent has ended before it execs.
"""

import json
import os
import select
import subprocess
import threading

pids = {}
pids["spawn"], pids["grandchild"] = map(
    int,
    subprocess.run(
        ["/bin/sh", "-c", "echo $$; /bin/sh -c 'echo $$' & wait"],
        env={**os.environ, "OTEL_SERVICE_NAME": "spawned"},
        capture_output=True,
        check=True,
    ).stdout.split(),
)

pids["fork"] = os.fork()
if not pids["fork"]:
    os.execve("/bin/true", ["true"], {"OTEL_RESOURCE_ATTRIBUTES": "service.name=forked%20one,team=a"})
os.waitpid(pids["fork"], 0)

pids["thread"] = os.fork()
if not pids["thread"]:
    run = threading.Thread(
        target=os.execve, args=("/bin/sh", ["sh", "-c", "exit 3"], {"OTEL_SERVICE_NAME": "threaded"})
    )
    run.start()
    run.join()
    os._exit(9)
assert os.waitstatus_to_exitcode(os.waitpid(pids["thread"], 0)[1]) == 3

orphaned, alive = os.pipe()
told, tell = os.pipe()
pids["orphan_parent"] = os.fork()
if not pids["orphan_parent"]:
    if not (orphan := os.fork()):
        os.close(tell)
        # End of file: the parent in the middle has ended.
        os.close(alive)
        os.read(orphaned, 1)
        os.execve("/bin/sh", ["sh", "-c", "exit 4"], {"OTEL_SERVICE_NAME": "orphaned"})
    os.write(tell, str(orphan).encode())
    os._exit(0)
os.close(tell)
os.waitpid(pids["orphan_parent"], 0)
pids["orphan"] = int(os.read(told, 16))
watch = os.pidfd_open(pids["orphan"])
os.close(alive)

select.select([watch], [], [])
pids["main"] = os.getpid()
os.write(1, json.dumps(pids).encode())
os._exit(1)
