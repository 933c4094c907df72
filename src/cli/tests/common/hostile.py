"""A process that makes it hard to be looked at: hostile.py HOW [ARGUMENT...]. Says `ready` and waits for its end; says why, where it cannot be so here."""

import ctypes
import mmap
import os
import struct
import sys
import threading

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
PAGE = 4096
SHARED, PRIVATE, FIXED, ANONYMOUS = 1, 2, 0x10, 0x20
CHUNK_SLOTS = 4096


def give_up(what):
    print(f"{what}: {os.strerror(ctypes.get_errno())}", flush=True)
    sys.exit(0)


def mapped(at, length, rights, flags, fd=-1):
    place = libc.mmap(at, length, rights, flags, fd, 0)
    if place == ctypes.c_void_p(-1).value:
        give_up("mmap")
    return place


def never(at, length):
    """Nobody fills the pages there, and who touches them waits."""
    fd = libc.syscall(323, os.O_CLOEXEC)
    if fd < 0:
        give_up("userfaultfd")
    handshake = ctypes.create_string_buffer(struct.pack("QQQ", 0xAA, 0, 0))
    if libc.ioctl(fd, ctypes.c_ulong(0xC018AA3F), handshake) < 0:
        give_up("UFFDIO_API")
    # For pages that are missing.
    place = ctypes.create_string_buffer(struct.pack("QQQQ", at, length, 1, 0))
    if libc.ioctl(fd, ctypes.c_ulong(0xC020AA00), place) < 0:
        give_up("UFFDIO_REGISTER")


def forge(used, first, step):
    libc.counting_forge(ctypes.c_uint32(used), ctypes.c_size_t(first), ctypes.c_size_t(step))


def mappings(path, count):
    """So many of a file of 16 MB, which may be written and executed, but not by anybody else."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 16 << 20)
    for _ in range(int(count)):
        mapped(None, 16 << 20, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC, PRIVATE, fd)


def page():
    """The table of connections is on a page that never comes."""
    length = libc.counting_chunk_len()
    at = mapped(None, length, mmap.PROT_READ | mmap.PROT_WRITE, PRIVATE | ANONYMOUS)
    never(at, length)
    forge(1, at, 0)


def table(used):
    """So many connections, all of them there."""
    length = libc.counting_chunk_len()
    fd = os.memfd_create("chunk")
    os.ftruncate(fd, length)
    rights = mmap.PROT_READ | mmap.PROT_WRITE
    first = mapped(None, CHUNK_SLOTS * length, 0, PRIVATE | ANONYMOUS)
    for number in range(CHUNK_SLOTS):
        mapped(first + number * length, length, rights, SHARED | FIXED, fd)
    libc.counting_fill(ctypes.c_void_p(first))
    forge(int(used), first, length)


def loop(used):
    """So many connections, of which all chunks are one and the same."""
    length = libc.counting_chunk_len()
    at = mapped(None, length, mmap.PROT_READ | mmap.PROT_WRITE, PRIVATE | ANONYMOUS)
    libc.counting_fill(ctypes.c_void_p(at))
    forge(int(used), at, 0)


def server(folder):
    """The table is on a page of a file on a file system that never answers a read. The mount ends with this process."""
    if libc.unshare(0x00020000) < 0 or libc.mount(None, b"/", None, ctypes.c_ulong(0x44000), None) < 0:
        give_up("unshare")
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        ctypes.set_errno(error.errno)
        give_up("/dev/fuse")
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    if libc.mount(b"hostile", folder.encode(), b"fuse", ctypes.c_ulong(0), options) < 0:
        give_up("mount")
    length = libc.counting_chunk_len()

    def attributes(node):
        kind, size = (0o40755, 0) if node == 1 else (0o100644, length)
        return struct.pack("QQQQQQIIIIIIIIII", node, size, 0, 0, 0, 0, 0, 0, 0, kind, 1, 0, 0, 0, PAGE, 0)

    def serve():
        while True:
            request = os.read(device, 1 << 20)
            _, opcode, unique, node = struct.unpack_from("IIQQ", request)
            answer = {
                26: struct.pack("IIIIHHIIHHI28x", 7, 31, 0, 0, 0, 0, 1 << 16, 1, 0, 0, 0),   # INIT: no asynchronous reads
                1: struct.pack("QQQQII", 2, 0, 60, 60, 0, 0) + attributes(2),                  # LOOKUP
                3: struct.pack("QII", 60, 0, 0) + attributes(node),                            # GETATTR
                14: struct.pack("QII", 0, 0, 0),                                               # OPEN
                18: b"",                                                                       # RELEASE
                25: b"",                                                                       # FLUSH
            }
            if opcode in (2, 15, 36, 42):                                                      # READ; the rest wants no answer
                continue
            error = 0 if opcode in answer else -38
            body = answer.get(opcode, b"")
            os.write(device, struct.pack("IiQ", 16 + len(body), error, unique) + body)

    threading.Thread(target=serve, daemon=True).start()
    fd = os.open(os.path.join(folder, "file"), os.O_RDONLY)
    forge(1, mapped(None, length, mmap.PROT_READ, PRIVATE, fd), 0)
    # While it can be answered: this process could not end else.
    os.close(fd)


how, *arguments = sys.argv[1:]
{f.__name__: f for f in (mappings, page, table, loop, server)}[how](*arguments)
print("ready", flush=True)
sys.stdin.read()
