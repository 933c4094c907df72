"""The two hosts that scripts/guest/run makes, ha and hb: their addresses, and what their kernels and devices count."""

import os
import re
import subprocess
import time

import common
from common import Failure

SIDES = ("ha", "hb")
# iWARP dials whom it was agreed with, only.
PEERS = {"SLUICE_PEERS": "10.99.0.0/16,fd99::/64"}
MTU = 4096      # of the devices, the largest there is: no packet of theirs carries more
_TCP_BYTES = re.compile(r"\bbytes_(?:acked|received):(\d+)")
_TCP_ENDS = re.compile(r":(\d+)\s+\S+:(\d+)\s")


def need_guest():
    if "GUEST_DEVICE" not in os.environ:
        raise SystemExit("only under scripts/guest/run")


def address(side):
    return os.environ[{"ha": "GUEST_A", "hb": "GUEST_B"}[side]]


def ask(side, *cmd):
    """What a command says there."""
    return subprocess.run(["ip", "netns", "exec", side, *cmd], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=30 * common.SLOW).stdout


def set_interface(side, state):
    subprocess.run(["ip", "-n", side, "link", "set", "veth0", state], check=True, stdin=subprocess.DEVNULL,
                   timeout=30 * common.SLOW)


def resources():
    """What the kernel holds for RDMA, by all devices: {"ha qp": 1, ...}"""
    out = {}
    for side in SIDES:
        for line in ask(side, "rdma", "resource", "show").splitlines():
            words = line.split()[2:]
            for name, n in zip(words[::2], words[1::2]):
                out[f"{side} {name}"] = out.get(f"{side} {name}", 0) + int(n)
    return out


def sent_packets():
    """Of the devices of both hosts; None where they do not count."""
    counted = [re.search(r"sent_pkts (\d+)", ask(side, "rdma", "statistic", "show")) for side in SIDES]
    return sum(int(c.group(1)) for c in counted) if all(counted) else None


class Meter:
    """What connections of ha move by TCP and what the devices send, from here on."""

    def __init__(self, path):
        self.path = path
        self.packets = sent_packets()
        # Each connection as it is destroyed, with all that it has ever moved.
        with open(path, "w") as f:
            self.watcher = common.start(["stdbuf", "-o0", "ss", "-E", "-O", "-H", "-n", "-t", "-i"], stdout=f,
                                        stderr=subprocess.DEVNULL, env=common.environment(False, host="ha"))
        common.until(self.watches, "ss does not watch")

    def watches(self):
        with open(f"/proc/{self.watcher.pid}/net/netlink") as f:
            # Protocol 4 is the diagnosis of sockets; who watches has joined groups.
            return any(words[1] == "4" and int(words[3], 16) for words in map(str.split, f.readlines()[1:]))

    def tcp(self, ports):
        """The bytes, both ways, of all connections with one of these ports, which are over by now. iWARP has TCP
        connections of its own, with other ports."""
        size = -1
        while size != (size := os.path.getsize(self.path)):
            time.sleep(0.2)
        if os.waitid(os.P_PID, self.watcher.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            raise Failure("ss did not watch to the end")
        common.end(self.watcher)
        moved = 0
        with open(self.path) as f:
            for line in f:
                ends = _TCP_ENDS.search(line)
                if ends and ports & {int(ends.group(1)), int(ends.group(2))}:
                    moved += sum(map(int, _TCP_BYTES.findall(line)))
        return moved

    def device(self):
        """Bytes that the devices have sent at most; None where they do not count."""
        return None if self.packets is None else (sent_packets() - self.packets) * MTU
