"""Two programs that talk over TCP, and what one of them does that keeps their connection on TCP.

  talkers.py server|client PORT SETUP TRICK TALK

SETUP happens before the socket is made, TRICK to the connected socket, TALK is what the two say. A
trick in LATE happens in the middle of the talk. PORT is HOST:PORT, or `fd:N` for a socket that was
inherited.
"""

import array
import contextlib
import ctypes
import fcntl
import mmap
import os
import select
import signal
import socket
import struct
import sys
import threading
import time

LIBC = ctypes.CDLL(None, use_errno=True)
# Messages of so many bytes, with answers: well beyond the 32 KiB at which a connection leaves TCP,
# and pauses, longer together than an end waits for the other.
MESSAGE, ANSWER, ROUNDS, PAUSES = 4000, 1000, 300, (15, 60, 200)
# The round before which a late trick happens: the connection has left TCP if it could.
LATE_ROUND = 250
PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 4, 22, 38
SO_ATTACH_FILTER, TCP_ZEROCOPY_RECEIVE, TCP_MD5SIG = 26, 35, 14
BPF_ACCEPT_ALL = struct.pack("HBBI", 0x06, 0, 0, 0x40000)


# --- before the socket is made ---

def thread(_role, _address):
    """A program that has made a thread: under a filter the library may make one, too."""
    t = threading.Thread(target=int)
    t.start()
    t.join()


def not_dumpable(_role, _address):
    LIBC.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def sandbox(_role, _address):
    """A filter that allows all."""
    code = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000))
    program = struct.pack("HP", 1, ctypes.addressof(code))
    LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    LIBC.prctl(PR_SET_SECCOMP, 2, program, 0, 0)


def crowd(role, address, count=4100):
    """More other connections between the two than a process has accelerated."""
    if role == "server":
        return count
    for _ in range(count):
        s = socket.create_connection(address)
        KEPT.append(s)
        for _ in range(12):
            s.sendall(bytes(MESSAGE))
            s.recv(1)


def group(role, address):
    """Other connections between the two, whose rings fill the memory of their link."""
    return crowd(role, address, 100)


def few(role, address):
    """Other connections, more than may rest on a link between hosts."""
    return crowd(role, address, 20)


def accepts_late(role, _address):
    """The server does not accept the connection for now."""
    return -1 if role == "server" else 0


def forks_later(role, address):
    """The parent has used RDMA when it forks; the child makes the connection."""
    if role == "server":
        return 1
    crowd(role, address, 1)
    time.sleep(1)
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        os._exit(0)


def echoes(s):
    while s.recv(MESSAGE):
        s.sendall(b"y")


KEPT = []
# What is returned is how many other connections a server accepts first.
SETUPS = {"none": lambda *_: None, "thread": thread, "not-dumpable": not_dumpable,
          "sandbox": sandbox, "crowd": crowd, "group": group, "few": few,
          "forks-later": forks_later, "accepts-late": accepts_late}


# --- what one end does to its connection; what it returns is called at the end,
# or is, of a late one, the socket from then on ---

def option(level, name, value=1):
    return lambda s: s.setsockopt(level, name, value)


def fork_shares(s):
    child = os.fork()
    if child == 0:
        signal.pause()
    return lambda: os.kill(child, signal.SIGKILL)


def fork_uses(s):
    """The child goes on, the parent waits for it."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        os._exit(0)


def executes(s):
    s.set_inheritable(True)
    same = [sys.executable, *sys.argv[:2], f"fd:{s.fileno()}", "none", "none", sys.argv[5]]
    os.execv(sys.executable, same)


def exits(s):
    os._exit(0)


def resets(s):
    """Closes with an answer unread."""
    s.sendall(b"x" * MESSAGE)
    select.select([s], [], [])
    s.close()
    os._exit(0)


def closes(s):
    s.close()
    os._exit(0)


def disconnects(s):
    LIBC.connect(s.fileno(), bytes(16), 16)
    s.close()
    os._exit(0)


def changes_user(s):
    os.setresgid(54321, 54321, 54321)
    os.setresuid(54321, 54321, 54321)


def passed(s):
    a, b = socket.socketpair()
    a.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [s.fileno()]))])
    b.recvmsg(1, 64)


def signal_driven(s):
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    fcntl.fcntl(s, fcntl.F_SETFL, fcntl.fcntl(s, fcntl.F_GETFL) | os.O_ASYNC)


def attach_filter(s):
    code = ctypes.create_string_buffer(BPF_ACCEPT_ALL)
    s.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(code)))


def signs(s):
    """A key for another address, so that the connection itself goes on as before."""
    address = struct.pack("=HH4s120x", socket.AF_INET, 0, socket.inet_aton("192.0.2.1"))
    key = struct.pack("=BBHI80s", 0, 0, 3, 0, b"key")
    s.setsockopt(socket.IPPROTO_TCP, TCP_MD5SIG, address + key)


def zerocopy_receive(s):
    """Whether this kernel accepts so short a question or not."""
    try:
        s.getsockopt(socket.IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, 64)
    except OSError:
        pass


def raw_syscall(s):
    # recvfrom
    buffer = ctypes.create_string_buffer(1)
    LIBC.syscall(45, s.fileno(), buffer, 0, socket.MSG_DONTWAIT, 0, 0)


def not_hooked(s):
    """write(2) by an instruction of the program's own, as a Go program does it."""
    # mov rax,rdi; mov rdi,rsi; mov rsi,rdx; mov rdx,rcx; syscall; ret
    code = bytes.fromhex("4889f8 4889f7 4889d6 4889ca 0f05 c3")
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    word = ctypes.c_long
    call = ctypes.CFUNCTYPE(word, word, word, ctypes.c_char_p, word)(
        ctypes.addressof(ctypes.c_char.from_buffer(page)))
    assert call(1, s.fileno(), b"y", 1) == 1
    KEPT.append(page)


def uring(s):
    """One operation on the socket by io_uring(7): an fsync, which fails."""
    params = ctypes.create_string_buffer(120)
    ring = LIBC.syscall(425, 4, params)
    tail, array = struct.unpack_from("I", params, 44)[0], struct.unpack_from("I", params, 64)[0]
    queue, entries = (mmap.mmap(ring, mmap.PAGESIZE, mmap.MAP_SHARED, offset=at)
                      for at in (0, 0x10000000))
    struct.pack_into("=BBHi", entries, 0, 3, 0, 0, s.fileno())
    struct.pack_into("I", queue, array, 0)
    struct.pack_into("I", queue, tail, 1)
    assert LIBC.syscall(426, ring, 1, 0, 0, None, 0) == 1


def set_of_another(s):
    """An epoll set that was made before this program began."""
    inherited = select.epoll.fromfd(int(os.environ["EPOLL_SET"]))
    inherited.register(s.fileno(), select.EPOLLIN)
    KEPT.append(inherited)


def registered_closed(s):
    """A set knows the number, a copy of the socket lives on."""
    epoll = select.epoll()
    epoll.register(s.fileno(), select.EPOLLIN | select.EPOLLOUT)
    copy, number = os.dup(s.fileno()), s.detach()
    os.close(number)
    KEPT.append(epoll)
    return socket.socket(fileno=copy)


def repairs(s):
    """Begins a repair and ends it."""
    for value in (1, 0):
        s.setsockopt(TCP, 19, value)


def kernel_tls(s):
    """Both ends have agreed on the keys of AES-128-GCM: TLS 1.2, iv, key, salt, number."""
    s.setsockopt(TCP, 31, b"tls")
    for direction in (1, 2):
        s.setsockopt(282, direction, struct.pack("=HH36x", 0x0303, 51))


def name_taken(s):
    """Binds the name at which the two ends meet: that of the connecting end's inode."""
    squatter = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    squatter.bind("\0sluice/3/%x" % os.fstat(s.fileno()).st_ino)
    KEPT.append(squatter)


def c_function(name, mode):
    def use(s):
        LIBC.fdopen.restype = ctypes.c_void_p
        if name == "fdopen":
            LIBC.fdopen(s.fileno(), mode)
        else:
            LIBC.dprintf(s.fileno(), b"")
    return use


def at_once(call):
    """Does what would wait for bytes, and does not wait."""
    def use(s):
        s.setblocking(False)
        try:
            call(s.fileno())
        except OSError:
            pass
        s.setblocking(True)
    return use


def splice(fd):
    r, _ = os.pipe2(os.O_NONBLOCK)
    os.splice(r, fd, 1)


def preadv2(fd):
    os.preadv(fd, [bytearray(0)], -1, os.RWF_HIPRI)


def urgent(s):
    s.send(b"!", socket.MSG_OOB)


TCP, SOCKET = socket.IPPROTO_TCP, socket.SOL_SOCKET
TRICKS = {
    "none": lambda s: None,
    "shared": fork_shares,
    "msg-oob": urgent,
    "attach-filter": attach_filter,
    "zerocopy": option(SOCKET, 60),
    "timestamping": option(SOCKET, 37, 1 << 3),
    "pacing-rate": option(SOCKET, 47, 1 << 30),
    "signal-driven": signal_driven,
    "tcp-md5": signs,
    "tcp-ulp": kernel_tls,
    "peek-off": option(SOCKET, 42, 0),
    "zerocopy-receive": zerocopy_receive,
    "splice": at_once(splice),
    "fdopen": c_function("fdopen", b"r+"),
    "dprintf": c_function("dprintf", None),
    "raw-syscall": raw_syscall,
    "not-hooked": not_hooked,
    "io-uring": uring,
    "set-elsewhere": set_of_another,
    "passed": passed,
    "preadv2": at_once(preadv2),
    "send-buffer-small": option(SOCKET, socket.SO_SNDBUF, 1),
    "tcp-repair": repairs,
    "peer-owner": changes_user,
    "name-taken": name_taken,
    "executes": executes,
}
LATE = {"urgent": urgent, "registered-closed": registered_closed, "fork": fork_uses,
        "exec": executes, "exit": exits, "close": closes, "linger-reset": resets,
        "disconnected": disconnects}


# --- what the two say ---

def rounds(s, role, late):
    for i in range(ROUNDS):
        if i == LATE_ROUND:
            s = late(s) or s
        if role == "client":
            s.sendall(b"x" * MESSAGE)
        left = MESSAGE if role == "server" else ANSWER
        while left:
            data = s.recv(left)
            if not data:
                return
            left -= len(data)
        if role == "server":
            s.sendall(b"y" * ANSWER)
        elif i in PAUSES:
            time.sleep(0.15)
    if role == "client":
        s.shutdown(socket.SHUT_WR)
    while s.recv(1 << 16):
        pass


def one_way(s, role, _late):
    """The client has nothing to say: as `nc` without input."""
    if role == "client":
        s.shutdown(socket.SHUT_WR)
        while s.recv(1 << 16):
            pass
        return
    assert s.recv(1) == b""
    for _ in range(ROUNDS):
        s.sendall(b"y" * MESSAGE)
        time.sleep(0.002)


def little(s, role, _late):
    if role == "client":
        s.sendall(b"x")
        s.shutdown(socket.SHUT_WR)
    while s.recv(100):
        pass


def closes_early(s, role, _late):
    """The server has closed the connection before the client begins to read."""
    if role == "server":
        s.sendall(bytes(100 << 10))
        return
    time.sleep(0.5)
    while s.recv(100):
        pass


def leaves_tcp(s, role):
    """Rounds, after which the connection has left TCP."""
    for _ in range(ROUNDS):
        if role == "client":
            s.sendall(bytes(MESSAGE))
            s.recv(1)
            time.sleep(0.002)
        else:
            s.recv(MESSAGE, socket.MSG_WAITALL)
            s.sendall(b"y")


def rests(s, role, _late):
    """After some rounds nothing moves for a while."""
    leaves_tcp(s, role)
    time.sleep(8)


def never_read(s, role, _late):
    """After some rounds the client writes until it may not, and the server reads nothing."""
    leaves_tcp(s, role)
    if role == "client":
        s.setblocking(False)
        try:
            while True:
                s.send(bytes(MESSAGE))
        except BlockingIOError:
            select.select([], [s], [], 1)
    time.sleep(60)


def reaches_threshold(s, role, unread=0):
    """The client says more than the threshold, and the server reads all but so many bytes of it."""
    half = 20 << 10
    for more in (0, unread):
        if role == "client":
            s.sendall(bytes(half + more))
            time.sleep(0.05)
        else:
            s.recv(half, socket.MSG_WAITALL)


def one_message(s, role, _late):
    """Beyond the threshold nobody writes."""
    reaches_threshold(s, role)
    # The end that came second has begun to meet by now, and the other one hears of it.
    s.setblocking(False)
    for _ in range(20):
        try:
            s.recv(1)
        except BlockingIOError:
            time.sleep(0.01)
    time.sleep(60)


def peeks(s, role, _late):
    """The two have met, and TCP has less than the server then waits for with a peek."""
    reaches_threshold(s, role, unread=1000)
    s.setblocking(False)
    for i in range(1000):
        with contextlib.suppress(BlockingIOError):
            s.recv(1, socket.MSG_PEEK)
        time.sleep(0.01)
        if role == "server" and i == 20:
            s.setblocking(True)
            s.recv(2000, socket.MSG_PEEK | socket.MSG_WAITALL)


def answers(s, _role, _late):
    while data := s.recv(1 << 16):
        s.sendall(data)


def stays(s, role, late):
    """The rounds, and no end."""
    rounds(s, role, late)
    time.sleep(60)


def unread(s, role, _late):
    """The client says more than the threshold, the server does not read it."""
    if role == "client":
        # The server has accepted it.
        time.sleep(0.2)
        for size in (40 << 10, 1):
            s.sendall(bytes(size))
    time.sleep(60)


def killed(s, role, _late):
    if role == "client":
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
        while True:
            s.sendall(b"x" * MESSAGE)
            s.recv(1)
    while s.recv(MESSAGE):
        s.send(b"y")


TALKS = {"rounds": rounds, "rests": rests, "one way": one_way, "little": little,
         "killed": killed, "closes early": closes_early,
         "never read": never_read, "one message": one_message, "unread": unread,
         "peeks": peeks, "answers": answers, "stays": stays}


def connection(role, port, setup):
    kind, _, number = port.partition(":")
    if kind == "fd":
        return socket.socket(fileno=int(number))
    address = (kind, int(number))
    others = SETUPS[setup](role, address) or 0
    if role == "client":
        return socket.create_connection(address)
    with socket.create_server(address) as listener:
        print("ready", flush=True)
        if others < 0:
            time.sleep(60)
        threading.stack_size(128 << 10)
        for _ in range(others):
            s, _ = listener.accept()
            threading.Thread(target=echoes, args=(s,), daemon=True).start()
        return listener.accept()[0]


def main(role, port, setup, trick, talk):
    s = connection(role, port, setup)
    at_end = TRICKS.get(trick, TRICKS["none"])(s)
    try:
        TALKS[talk](s, role, LATE.get(trick, TRICKS["none"]))
    except ConnectionError:
        pass
    s.close()
    if at_end:
        at_end()


if __name__ == "__main__":
    main(*sys.argv[1:])
