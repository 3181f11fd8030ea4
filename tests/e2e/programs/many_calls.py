# SPDX-License-Identifier: Apache-2.0
"""Sockets of each kind, epoll, poll, select, shared memory, timers, locks, io_uring's set-up: once each."""

import ctypes
import fcntl
import mmap
import os
import resource
import select
import signal
import socket
import struct
import sys
import tempfile
import time

listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
server, _ = listener.accept()
client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 2))
client.sendall(b"request\n" * 20)
server.recv(4096)
server.sendmsg([b"answer ", b"in two pieces"])
client.recv(4096, socket.MSG_PEEK)
client.recv(4096)
poller = select.epoll()
poller.register(client, select.EPOLLIN | select.EPOLLET)
server.send(b"x")
poller.poll(1)
select.select([client], [client], [], 1.5)
polled = select.poll()
polled.register(client, select.POLLIN)
polled.register(server, select.POLLIN | select.POLLOUT)
polled.poll(10)
poller.modify(client, select.EPOLLOUT)
poller.unregister(client)
client.shutdown(socket.SHUT_WR)
for one in (client, server, listener, poller):
    one.close()

first = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
first.bind(("127.0.0.1", 0))
second = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
second.sendto(b"datagram", first.getsockname())
first.recvfrom(100)
first.settimeout(0.01)
try:
    first.recvfrom(100)
except TimeoutError:
    pass
left, right = socket.socketpair()
socket.send_fds(left, [b"fds"], [0, 1])
socket.recv_fds(right, 100, 5)
left.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
left.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
six = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
try:
    six.connect(("::1", 1))
except OSError:
    pass

with tempfile.TemporaryFile() as file:
    file.write(b"0123456789" * 1000)
    file.flush()
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.lockf(file, fcntl.LOCK_EX, 10, 5)
    os.pwritev(file.fileno(), [b"ab", b"cd"], 3)
    os.preadv(file.fileno(), [bytearray(4), bytearray(8)], 0)
    os.fstatvfs(file.fileno())
    os.utime(file.fileno(), ns=(1_000_000_002, 2_000_000_003))
    with mmap.mmap(file.fileno(), 0) as memory:
        memory[0:4] = b"mmap"
        memory.flush()
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.01)
time.sleep(0.05)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGTERM})
resource.setrlimit(resource.RLIMIT_NOFILE, (512, 1024))
resource.getrusage(resource.RUSAGE_SELF)
os.sched_setaffinity(0, {0})
os.sched_getaffinity(0)
os.getgroups()
os.uname()
os.times()
child = os.fork()
if not child:
    os._exit(3)
os.waitpid(child, 0)
parameters = ctypes.create_string_buffer(120)
ring = ctypes.CDLL(None).syscall(425, 4, parameters)
if ring >= 0:
    os.close(ring)
sys.exit(0)
