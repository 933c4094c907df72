"""Small clients that scripts/programs.py runs as processes of their own, so that they can be
preloaded: `clients.py memcached HOST PORT SEED COUNT`, `clients.py urllib URL SHA256 TIMES`,
`clients.py keepalive HOST PORT PATH SHA256 TIMES`, `clients.py ftp HOST PORT NAME SHA256 TIMES`. Status 0 if every byte was right."""

import ftplib
import hashlib
import http.client
import random
import socket
import sys
import threading
import urllib.request


class Memcache:
    def __init__(self, host, port):
        self.sock = socket.create_connection((host, port), timeout=60)
        self.file = self.sock.makefile("rb")

    def _line(self):
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise SystemExit(f"connection ended: {line!r}")
        return line[:-2]

    def set(self, key, value):
        self.sock.sendall(b"set %s 0 0 %d\r\n%s\r\n" % (key, len(value), value))
        answer = self._line()
        if answer != b"STORED":
            raise SystemExit(f"set: {answer!r}")

    def get_many(self, keys):
        self.sock.sendall(b"get " + b" ".join(keys) + b"\r\n")
        found = {}
        while True:
            line = self._line()
            if line == b"END":
                return found
            word, key, _, size = line.split()
            if word != b"VALUE":
                raise SystemExit(f"get: {line!r}")
            value = self.file.read(int(size))
            if self.file.read(2) != b"\r\n":
                raise SystemExit("get: a value of another length than announced")
            found[key] = value


def memcached(host, port, seed, count):
    """Four connections at once: values of 1 byte to 256 KiB set, then read back together."""
    wrong = []

    def one(n):
        try:
            rng = random.Random(seed * 101 + n)
            client = Memcache(host, port)
            for _ in range(count):
                values = {b"k%d-%d" % (n, i): rng.randbytes(rng.choice((1, 100, 4000, 65536, 262144)))
                          for i in range(8)}
                for key, value in values.items():
                    client.set(key, value)
                found = client.get_many(list(values))
                for key, value in values.items():
                    # A value may have been evicted, never changed.
                    if found.get(key, value) != value:
                        wrong.append(f"{key!r} came back changed")
                if not found:
                    wrong.append("nothing came back")
        except (OSError, SystemExit) as e:
            wrong.append(f"connection {n}: {e}")

    threads = [threading.Thread(target=one, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if wrong:
        sys.exit("; ".join(wrong[:5]))


def digest(stream):
    h, n = hashlib.sha256(), 0
    while True:
        piece = stream.read(1 << 16)
        if not piece:
            return h.hexdigest(), n
        h.update(piece)
        n += len(piece)


def by_urllib(url, want, times):
    for _ in range(times):
        with urllib.request.urlopen(url, timeout=60) as answer:
            got, n = digest(answer)
        if got != want:
            sys.exit(f"{url}: wrong bytes ({n} of them)")


def keepalive(host, port, path, want, times):
    connection = http.client.HTTPConnection(host, port, timeout=60)
    for _ in range(times):
        connection.request("GET", path)
        got, n = digest(connection.getresponse())
        if got != want:
            sys.exit(f"{path}: wrong bytes ({n} of them)")


def ftp(host, port, name, want, times):
    """A data connection for each, some of which the server opens."""
    with ftplib.FTP() as connection:
        connection.connect(host, port, timeout=60)
        connection.login()
        for n in range(times):
            connection.set_pasv(n % 4 != 3)
            got = hashlib.sha256()
            connection.retrbinary(f"RETR {name}", got.update)
            if got.hexdigest() != want:
                sys.exit(f"{name}: wrong bytes")


def main():
    kind, args = sys.argv[1], sys.argv[2:]
    if kind == "memcached":
        memcached(args[0], int(args[1]), int(args[2]), int(args[3]))
    elif kind == "urllib":
        by_urllib(args[0], args[1], int(args[2]))
    elif kind == "ftp":
        ftp(args[0], int(args[1]), args[2], args[3], int(args[4]))
    elif kind == "keepalive":
        keepalive(args[0], int(args[1]), args[2], args[3], int(args[4]))
    else:
        sys.exit(f"no client {kind!r}")


if __name__ == "__main__":
    main()
