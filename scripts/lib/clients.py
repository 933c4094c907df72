"""Small clients that scripts/programs.py runs as processes of their own, so that they can be
preloaded: `clients.py memcached HOST PORT SEED COUNT`, `clients.py urllib URL SHA256 TIMES`,
`clients.py keepalive HOST PORT PATH SHA256 TIMES`, `clients.py ftp HOST PORT NAME SHA256 TIMES`,
`clients.py steady HOST PORT PATH FILE CONNECTIONS SECONDS SEED`. Status 0 if every byte was right."""

import ftplib
import hashlib
import http.client
import json
import os
import random
import selectors
import socket
import sys
import threading
import time
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


# --- steady load ---

class Kept:
    """One place among those that ask: its connection, from which it goes to the next when that has ended."""

    def __init__(self, load, n):
        self.load = load
        # One in four asks again at once. The rest mostly wait, so long that at any moment few of them have asked.
        self.rng = random.Random(load.seed * 101 + n) if n % 4 else None
        self.again = False      # this request is asked for the second time
        self.due = None         # when it asks, if it waits
        self.dial()
        self.ask()

    def dial(self):
        self.sock = socket.create_connection(self.load.address, timeout=60)
        self.sock.setblocking(False)
        self.load.selector.register(self.sock, selectors.EVENT_READ, self)
        self.answered = None    # when what was answered last was asked, on this connection

    def drop(self):
        self.load.selector.unregister(self.sock)
        self.sock.close()

    def ask(self):
        self.due, self.got, self.asked = None, b"", time.monotonic()
        try:
            if self.sock.send(self.load.request) != len(self.load.request):
                raise SystemExit("a request did not fit into an idle connection")
        except (ConnectionResetError, BrokenPipeError) as e:
            self.ended(e)

    def ended(self, how):
        """No byte of the answer came: a connection that was used before may have been ended as an idle one, before the
        request came there. It is asked again, by a new one (RFC 9112, section 9.3.1). All else is a failure."""
        if self.got or self.answered is None or self.again:
            raise SystemExit(f"{'asked again: ' if self.again else ''}after {len(self.got)} bytes of an answer, "
                             f"{'none' if self.answered is None else 'some'} answered before: {how or 'the end'}")
        self.load.retried.append((self.rng is not None, self.answered, self.asked, time.monotonic()))
        self.again = True
        self.drop()
        self.dial()
        self.ask()

    def on_readable(self):
        try:
            piece = self.sock.recv(1 << 16)
        except BlockingIOError:
            return
        except ConnectionResetError as e:
            piece, how = b"", e
        else:
            how = None
        if self.due is not None:
            # Not asked for anything: it may end, once.
            if piece or how:
                raise SystemExit(f"on an idle connection: {how or piece[:80]}")
            self.load.idle_ends += 1
            self.drop()
            self.dial()
            return
        if not piece:
            return self.ended(how)
        self.got += piece
        head, gap, body = self.got.partition(b"\r\n\r\n")
        if gap and len(body) >= len(self.load.body):
            self.check(head.decode("latin-1").split("\r\n"), body)

    def check(self, head, body):
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        if head[0] != "HTTP/1.1 200 OK" or fields.get("content-length") != str(len(self.load.body)):
            raise SystemExit(f"an answer's head: {head}")
        if body != self.load.body:
            raise SystemExit(f"another body than was asked for ({len(body)} bytes)")
        self.load.answers += 1
        self.load.slowest = max(self.load.slowest, time.monotonic() - self.asked)
        self.answered, self.again = self.asked, False
        if fields.get("connection") == "close":
            self.load.announced += 1
            self.drop()
            self.dial()
        if self.rng:
            self.due = time.monotonic() + self.rng.uniform(0.05, 0.15)
        else:
            self.ask()


class Load:
    def __init__(self, host, port, path, body, seed):
        self.address, self.body, self.seed = (host, port), body, seed
        self.request = f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode()
        self.selector = selectors.DefaultSelector()
        self.answers = self.announced = self.idle_ends = 0
        self.slowest = 0.0
        self.retried = []       # does it wait between two; when: asked what was answered before, asked, ended

    def run(self, connections, secs):
        until = time.monotonic() + secs
        places = [Kept(self, n) for n in range(connections)]
        slow = float(os.environ.get("GUEST_SLOW", "1"))
        while (now := time.monotonic()) < until:
            wait = min([p.due for p in places if p.due is not None], default=until) - now
            for key, _ in self.selector.select(max(0, min(wait, until - now))):
                key.data.on_readable()
            now = time.monotonic()
            for place in places:
                if place.due is not None and place.due <= now:
                    # Who has waited looks whether it has ended meanwhile.
                    place.on_readable()
                    place.ask()
                elif place.due is None and now - place.asked > 20 * slow:
                    raise SystemExit(f"no answer for {now - place.asked:.0f} s")


def steady(host, port, path, file, connections, secs, seed):
    """Kept connections that ask for one file again and again, each answer compared: what happened, as JSON."""
    with open(file, "rb") as f:
        load = Load(host, port, path, f.read(), seed)
    load.run(connections, secs)
    print(json.dumps({name: getattr(load, name) for name in ("answers", "announced", "idle_ends", "slowest", "retried")}))


def main():
    kind, args = sys.argv[1], sys.argv[2:]
    if kind == "memcached":
        memcached(args[0], int(args[1]), int(args[2]), int(args[3]))
    elif kind == "urllib":
        by_urllib(args[0], args[1], int(args[2]))
    elif kind == "ftp":
        ftp(args[0], int(args[1]), args[2], args[3], int(args[4]))
    elif kind == "steady":
        steady(args[0], int(args[1]), args[2], args[3], int(args[4]), float(args[5]), int(args[6]))
    elif kind == "keepalive":
        keepalive(args[0], int(args[1]), args[2], args[3], int(args[4]))
    else:
        sys.exit(f"no client {kind!r}")


if __name__ == "__main__":
    main()
