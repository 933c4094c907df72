"""A file system whose server never answers some processes: /dev/fuse by its own records (linux/fuse.h), without a library."""

import os
import select
import struct

from . import kernel

IN, OUT = struct.Struct("<IIQQIIIHH"), struct.Struct("<IiQ")
LOOKUP, FORGET, GETATTR, OPEN, RELEASE, FLUSH, INIT, BATCH_FORGET = 1, 2, 3, 14, 18, 25, 26, 42
ENOSYS = 38
FILE = 2


def attributes(node):
    mode = 0o100666 if node == FILE else 0o40777
    return struct.pack("<6Q10I", node, 4096, 8, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def answer(opcode, node):
    """What is said to those who are answered."""
    if opcode == INIT:
        return 0, struct.pack("<4I2H2I2HI7I", 7, 31, 0, 0, 16, 12, 4096, 1, 0, 0, *([0] * 8))
    if opcode == LOOKUP:
        return 0, struct.pack("<4Q2I", FILE, 1, 3600, 3600, 0, 0) + attributes(FILE)
    if opcode == GETATTR:
        return 0, struct.pack("<Q2I", 3600, 0, 0) + attributes(node)
    if opcode == OPEN:
        return 0, struct.pack("<Q2I", 1, 0, 0)
    if opcode in (FLUSH, RELEASE):
        return 0, b""
    return -ENOSYS, b""


def name_of(thread):
    try:
        with open(f"/proc/{thread}/comm") as f:
            return f.read()
    except OSError:
        return None


def serve(job, path):
    """Mounts it at `path` in a namespace of mounts of its own, and serves the runner and its children; a victim, or a process that works for
    one, is never answered."""
    kernel.unshare(kernel.NEWNS)
    kernel.private_mounts()
    device = os.open("/dev/fuse", os.O_RDWR)
    kernel.call("mount", b"stuck", path.encode(), b"fuse", kernel.NODEV_NOSUID,
                f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode())
    stuck = 0
    with open("/proc/self/comm") as f:
        served = f.read()
    job.tell("ready")
    while True:
        ready, _, _ = select.select([device, job.pipe], [], [])
        if job.pipe in ready:
            job.hear()
            job.tell(stuck)
            continue
        request = os.read(device, 1 << 17)
        _, opcode, unique, node, _, _, pid, _, _ = IN.unpack_from(request)
        if opcode in (FORGET, BATCH_FORGET):
            continue
        if opcode not in (INIT, RELEASE) and name_of(pid) != served:
            stuck += 1
            continue
        error, body = answer(opcode, node)
        os.write(device, OUT.pack(OUT.size + len(body), error, unique) + body)


class Stuck:
    """A file on it, and whom its server leaves without an answer."""

    def __init__(self, place):
        path = f"{place.dir}/stuck"
        os.makedirs(path, exist_ok=True)
        self.job = kernel.Job(serve, path, name="fuse")
        try:
            self.job.told()
        except Exception:
            self.job.end()
            raise
        self.fd = os.open(f"/proc/{self.job.pid}/root{path}/file", os.O_RDWR)

    def count(self):
        """Requests that wait."""
        self.job.say("stuck")
        return self.job.told()

    def end(self):
        """Whoever waits goes on, by an error."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self.job.end()
