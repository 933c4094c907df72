"""The C programs of benches/ as paired cases. See paired.py."""

import os
import subprocess
import sys

import common
from paired import Result


def binary(name):
    return os.path.join(common.BIN, name)


def pairs(text):
    out = {}
    for word in text.split():
        key, _, value = word.partition("=")
        out[key] = float(value)
    return out


WARM = 0.2
CC_MAX = 20000          # connections a run: within the ports of one address

_runs = 0


def duo(side, place, program, server_args, client_args, limit, before=lambda role: []):
    """Runs server and client of one program on an address of their own, or on the place's; their
    closing lines. `before`: the words ahead of the program's, by its role."""
    global _runs
    _runs += 1
    client_host, server_host = place.hosts
    own = f"127.{1 + _runs // 250 % 250}.{os.getpid() % 250}.{1 + _runs % 250}"
    addr = place.address or own
    server = common.start([*before("server"), binary(program), "server", addr, *server_args],
                          env=side.env(host=server_host), cpu=place.server,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    word, _, port = server.stdout.readline().partition(" ")
    if word != "port":
        common.wait(server, 5)
        raise common.Failure(f"{program} server: {server.stderr.read().strip() or 'no port'}")
    client = common.start([*before("client"), binary(program), "client", addr, port.strip(),
                           *client_args], env=side.env(report=True, host=client_host),
                          cpu=place.client,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    texts = []
    for child, role in ((client, "client"), (server, "server")):
        try:
            common.wait(child, limit)
        except common.Hang as e:
            trace = common.backtraces([client.pid, server.pid])
            print(trace, file=sys.stderr)
            common.end(client)
            common.end(server)
            raise common.Failure(f"hang: {e}")
        if child.returncode != 0:
            common.end(client)
            common.end(server)
            raise common.Failure(f"{program} {role}: {child.stderr.read().strip()} (status {child.returncode})")
        texts.append(pairs(child.stdout.read()))
    return texts


def seconds(n):
    return f"{n:g}"


def ping_pong(program, size):
    def run(side, place, secs):
        c, s = duo(side, place, program, [str(size)], [str(size), seconds(secs), str(WARM)], 60 + 10 * secs)
        return Result(c["ops"] / c["secs"], "/s", c["total"], c["secs"], c["cpu"] + s["cpu"],
                      c["p50_ns"], c["p99_ns"], side.counters())
    return run


def stream(program, size, warm=WARM):
    """One way. Its rate counts from `warm` seconds after its start, for `secs`."""
    def run(side, place, secs):
        c, s = duo(side, place, program, [str(size), seconds(warm)],
                   [str(size), seconds(secs + warm)], 60 + 10 * secs)
        return Result(s["bytes"] / s["secs"], "B/s", s["total_bytes"], s["secs"], c["cpu"] + s["cpu"],
                      counters=side.counters())
    return run


def fan(count, active):
    def run(side, place, secs):
        # 192 KiB each way on every connection: many times the default threshold.
        c, s = duo(side, place, "fan", [], [str(count), str(active), "196608", seconds(secs), str(WARM)],
                   120 + 10 * secs)
        return Result(c["ops"] / c["secs"], "/s", c["total"], c["secs"], c["cpu"] + s["cpu"],
                      counters=side.counters())
    return run


def churn(side, place, secs):
    c, s = duo(side, place, "cc", [], [str(CC_MAX), seconds(secs)], 60 + 10 * secs)
    return Result(c["ops"] / c["secs"], "/s", c["total"], c["secs"], c["cpu"] + s["cpu"])


def conversations(count, exchanges, size, before=lambda role: []):
    """`count` connections one after the other, each of so many exchanges of `size` bytes."""
    def run(side, place, secs):
        talk = [str(exchanges), str(size)]
        c, s = duo(side, place, "cc", talk, [str(count), seconds(secs), *talk], 60 + 10 * secs,
                   before)
        if c["ops"] != count:
            raise common.Failure(f"cc: {c['ops']:.0f} of {count} connections in {secs:g} s")
        return Result(c["ops"] / c["secs"], "/s", c["total"], c["secs"], c["cpu"] + s["cpu"],
                      counters=side.counters())
    return run
