"""Sets up SMC-R between the two hosts, by generic netlink, since Debian 12 has no smc-tools.

    smc.py                  in the first net namespace: names the host for SMC version 2, and the devices' network
    smc.py ethernet         in each of the two: names the network of veth0

As it comes, the kernel leaves every connection of AF_SMC on TCP. What it wants is a user-defined EID, the same at both
ends: version 2 is the only one that goes with RoCE v2 addresses, all that rxe has. The network's name (PNETID) says which
device reaches whom.
"""

import os
import socket
import struct
import sys

EID = b"SLUICE-FIGURES"
NETWORK = b"FIGURES\0"

# <linux/genetlink.h>, <linux/smc.h>
GENL_ID_CTRL, CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME = 16, 3, 1, 2
SMC_NETLINK_ADD_UEID, SMC_NLA_EID_TABLE_ENTRY, SMC_MAX_EID_LEN = 10, 1, 32
SMC_PNETID_ADD, SMC_PNETID_NAME, SMC_PNETID_ETHNAME, SMC_PNETID_IBNAME, SMC_PNETID_IBPORT = 2, 1, 2, 3, 4
NLM_F_REQUEST, NLM_F_ACK, NLMSG_ERROR = 1, 4, 2


def attribute(kind, value):
    size = 4 + len(value)
    return struct.pack("HH", size, kind) + value + b"\0" * (-size % 4)


class Netlink:
    def __init__(self):
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16)     # NETLINK_GENERIC
        self.socket.bind((0, 0))
        self.socket.settimeout(5)

    def call(self, family, command, *attributes):
        """What was answered before the acknowledgement, without the headers."""
        body = struct.pack("BBH", command, 1, 0) + b"".join(attributes)
        self.socket.send(struct.pack("IHHII", 16 + len(body), family, NLM_F_REQUEST | NLM_F_ACK, 1, 0) + body)
        answer = b""
        while True:
            data = self.socket.recv(65536)
            while data:
                size, kind = struct.unpack_from("IH", data)
                if kind == NLMSG_ERROR:
                    error = -struct.unpack_from("i", data, 16)[0]
                    if error:
                        raise OSError(error, os.strerror(error))
                    return answer
                answer += data[20:size]
                data = data[size + 3 & ~3:]

    def family(self, name):
        answer = self.call(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, attribute(CTRL_ATTR_FAMILY_NAME, name + b"\0"))
        while answer:
            size, kind = struct.unpack_from("HH", answer)
            if kind == CTRL_ATTR_FAMILY_ID:
                return struct.unpack_from("H", answer, 4)[0]
            answer = answer[size + 3 & ~3:]
        raise OSError(f"no netlink family {name.decode()}")

    def network(self, *attributes):
        self.call(self.family(b"SMC_PNETID"), SMC_PNETID_ADD, attribute(SMC_PNETID_NAME, NETWORK), *attributes)


def main():
    netlink = Netlink()
    if sys.argv[1:] == ["ethernet"]:
        netlink.network(attribute(SMC_PNETID_ETHNAME, b"veth0\0"))
        return
    netlink.call(netlink.family(b"SMC_GEN_NETLINK"), SMC_NETLINK_ADD_UEID,
                 attribute(SMC_NLA_EID_TABLE_ENTRY, EID.ljust(SMC_MAX_EID_LEN) + b"\0"))
    for side in ("ha", "hb"):
        netlink.network(attribute(SMC_PNETID_IBNAME, f"{os.environ['GUEST_DEVICE']}_{side}\0".encode()),
                        attribute(SMC_PNETID_IBPORT, b"\1"))


if __name__ == "__main__":
    try:
        main()
    except OSError as e:
        sys.exit(f"SMC: {e}")
