"""What the standard library does not call: users, namespaces, mounts, filters; and attackers as children of the runner."""

import contextlib
import ctypes
import os
import pickle
import select
import signal
import socket
import struct
import time
import traceback

import common
from common import Failure

NEWNS, NEWUSER, NEWPID, NEWNET = 0x20000, 0x10000000, 0x20000000, 0x40000000
NODEV_NOSUID, PRIVATE_REC = 6, 1 << 18 | 1 << 14
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
SYS_IO_URING_SETUP = 425
libc = ctypes.CDLL(None, use_errno=True)


def call(name, *args):
    """A function of libc; OSError where it fails."""
    words = [ctypes.c_char_p(a) if isinstance(a, bytes) else a if not isinstance(a, int) else ctypes.c_ulong(a) for a in args]
    done = getattr(libc, name)(*words)
    if done < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return done


def become(uid, gid=None):
    """Another user, for good, with nothing of root's left. Setting ids forbids others to look at the process; that is undone."""
    gid = uid if gid is None else gid
    if os.getuid() == 0:
        os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    call("prctl", PR_SET_DUMPABLE, 1, 0, 0, 0)


def unshare(flags):
    """New namespaces. In a new one of users the caller is root, and nobody else is there."""
    uid, gid = os.getuid(), os.getgid()
    call("unshare", flags)
    if flags & NEWUSER:
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
            with open(f"/proc/self/{name}", "w") as f:
                f.write(text)


def private_mounts():
    call("mount", b"none", b"/", None, PRIVATE_REC, None)


def mount_proc(options=b""):
    """A /proc of the caller's own namespace of process ids, in place of the one that is there."""
    call("mount", b"proc", b"/proc", b"proc", NODEV_NOSUID, options or None)


def refuse_system_call(number, which, value, errno=1):
    """From now on this system call fails if its argument `which` is `value` (seccomp, x86-64 and arm64: no older numbers)."""
    def op(code, jt, jf, k):
        return struct.pack("HBBI", code, jt, jf, k)
    code = b"".join((op(0x20, 0, 0, 0), op(0x15, 0, 3, number), op(0x20, 0, 0, 16 + 8 * which), op(0x15, 0, 1, value),
                     op(0x06, 0, 0, 0x50000 | errno), op(0x06, 0, 0, 0x7FFF0000)))
    room = ctypes.create_string_buffer(code)

    class Program(ctypes.Structure):
        _fields_ = [("len", ctypes.c_ushort), ("code", ctypes.c_void_p)]
    program = Program(len(code) // 8, ctypes.addressof(room))
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    call("prctl", PR_SET_SECCOMP, 2, ctypes.byref(program), 0, 0)


def socket_call_number():
    return {"x86_64": 41, "aarch64": 198}[os.uname().machine]


def io_uring():
    """A descriptor of one; OSError where the kernel makes none."""
    return call("syscall", SYS_IO_URING_SETUP, 4, ctypes.create_string_buffer(256))


class Job:
    """A child of the runner that does `work(job, *args)`, as another user if wanted. It says things by `job.tell`, and what it returns,
    or the Failure that it ends with, is the `result`."""

    def __init__(self, work, *args, uid=None, gid=None, shut=(), name=None):
        self.name = name or work.__name__
        self.args = [self.name]     # of a child, for common.py
        self.returncode = self.usage = None
        self.dismissed = False
        self.pipe, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        me = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            self._run(far, me, work, args, uid, gid, shut)
        far.close()
        common._children[self.pid] = self
        self.said, self.over = [], None

    def _run(self, far, runner, work, args, uid, gid, shut):
        try:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            common._children.clear()
            self.pipe.close()
            self.pipe = far
            # What the runner holds, and the attacker must not.
            for fd in shut:
                os.close(fd)
            if uid is not None:
                become(uid, gid)
            call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            # From within a new namespace of pids it is 0.
            if os.getppid() not in (runner, 0):
                os._exit(127)
            self._send("result", work(self, *args))
        except Failure as e:
            self._send("failure", str(e))
        except BaseException:
            self._send("failure", f"{self.name}: {traceback.format_exc(limit=-4)}")
        finally:
            os._exit(0)

    def _send(self, *what):
        try:
            self.pipe.send(pickle.dumps(what))
        except OSError:
            pass

    def tell(self, *what):
        """Child: says something to the runner."""
        self._send("said", what if len(what) > 1 else what[0])

    def hear(self, limit=10):
        """Child: what the runner says by `say`."""
        if not select.select([self.pipe], [], [], limit * common.SLOW)[0]:
            raise Failure(f"{self.name}: the runner says nothing")
        return pickle.loads(self.pipe.recv(1 << 16))

    def is_over(self):
        """Child: has the runner said something? It says `done` alone."""
        if not self.dismissed and select.select([self.pipe], [], [], 0)[0]:
            # Left unread it would cost the runner what was said last.
            self.pipe.recv(1 << 16)
            self.dismissed = True
        return self.dismissed

    def done(self, limit=20, **kw):
        """Has it end what it does: its result."""
        with contextlib.suppress(OSError):
            self.say("done")
        return self.finish(limit, **kw)

    def say(self, what):
        self.pipe.send(pickle.dumps(what))

    def _take(self, limit):
        if self.over:
            return None
        if not select.select([self.pipe], [], [], max(0, limit))[0]:
            raise common.Hang(f"{self.name} (pid {self.pid}) says nothing")
        data = self.pipe.recv(1 << 20)
        if not data:
            self.over = ("ended", None)
            return None
        kind, what = pickle.loads(data)
        if kind == "said":
            self.said.append(what)
        else:
            self.over = (kind, what)
        return kind

    def told(self, limit=10):
        """What it tells next. Failure where it ends instead."""
        deadline = time.monotonic() + limit * common.SLOW
        while not self.said:
            if self._take(deadline - time.monotonic()) is None:
                self.result(0)
                raise Failure(f"{self.name} has ended")
        return self.said.pop(0)

    def result(self, limit=20, may_die=False):
        deadline = time.monotonic() + limit * common.SLOW
        while not self.over:
            self._take(deadline - time.monotonic())
        kind, what = self.over
        if kind == "failure":
            raise Failure(what)
        if kind == "ended" and not may_die:
            raise Failure(f"{self.name} (pid {self.pid}) died")
        return what

    def finish(self, limit=20, may_die=False):
        """Its result, and its end."""
        try:
            return self.result(limit, may_die)
        finally:
            self.end()

    def end(self):
        if self.returncode is None:
            common._signal(self.pid, signal.SIGKILL)
            common.wait(self, 20)
        self.pipe.close()


def in_pid_namespace(job, work, *args):
    """Does it in a child that is the first process of a namespace of pids of its own, which the caller has unshared."""
    inner = Job(work_with(job, work), *args, name=work.__name__)
    return inner.finish(30)


def work_with(job, work):
    return lambda _, *args: work(job, *args)


def tcp_sockets():
    """(own port, peer's port, uid, inode) of every established connection by 127.0.0.1."""
    with open("/proc/net/tcp") as f:
        for line in f.readlines()[1:]:
            w = line.split()
            if w[3] == "01":
                yield int(w[1].split(":")[1], 16), int(w[2].split(":")[1], 16), int(w[7]), int(w[9])


def inode_of(port, peer_port, limit=3):
    """The inode of the socket that has these ports, once it has one."""
    deadline = time.monotonic() + limit * common.SLOW
    while time.monotonic() < deadline:
        for own, peer, _, inode in tcp_sockets():
            if (own, peer) == (port, peer_port) and inode:
                return inode
        time.sleep(0.001)
    raise Failure(f"there is no connection from port {port} to {peer_port}")
