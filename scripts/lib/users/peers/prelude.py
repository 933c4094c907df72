"""What the servers and clients of this folder share: `python SCRIPT PORT ...`."""

import asyncio
import hashlib
import random
import signal
import sys

HOST, PORT = "127.0.0.1", int(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))


async def until_told():
    """Waits in an event loop for SIGTERM, by a handler of the loop's, which always wakes it: one of
    `signal` does not where it runs just before the wait, which then goes on."""
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    await told.wait()


def blocks(count, size):
    """Gives so many blocks of that size, the same in each run."""
    pool = [random.Random(n).randbytes(size) for n in range(8)]
    return (pool[n % 8] for n in range(count))


def digest(parts):
    """Gives a checksum of all parts."""
    h = hashlib.sha256()
    for part in parts:
        h.update(part)
    return h.hexdigest()
