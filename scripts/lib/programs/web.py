"""nginx under curl, wrk and ab, reloaded and replaced under load."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time

import apps
import common
from common import Failure
from .run import CLIENT_LIMIT, CLIENTS, LINK_SHARE, same, sha256


def nginx(run, files, user="user root;", role="server", **kw):
    server = apps.Nginx(run.env[role], files, workers=2, user=user, directory=f"{run.dir}/nginx-{role}",
                        host=run.address(role), **kw)
    run.serve(server, server.stop)
    run.ports.add(server.port)
    return server


def curl_file(run, server, name, out):
    # Emptying an old file of this size takes a tenth of a second, in which curl reads nothing.
    if os.path.exists(out):
        os.unlink(out)
    run.client("curl", "-sS", "--fail", "-o", out, server if isinstance(server, str) else server.url(name))


def curl_pipe(run, times, *words, client="client"):
    """Begins to fetch something so many times over one connection: gives what waits for it and compares."""
    curl = common.start(["curl", "-sS", "--fail", *words[:-1], *words[-1:] * times], env=run.env[client], stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE, text=True)
    digest = common.start(["sha256sum"], stdin=curl.stdout, stdout=subprocess.PIPE, text=True)
    curl.stdout.close()
    curl.stdout = None

    def ends_as(path, what):
        out, _ = common.communicate(digest, CLIENT_LIMIT)
        _, err = common.communicate(curl, CLIENT_LIMIT)
        if curl.returncode != 0:
            raise Failure(f"curl of {what}: {err.strip()}")
        if out.split()[0] != sha256(path, times):
            raise Failure(f"{what}: other bytes arrived than were sent")
    return ends_as


def nginx_curl(run, user="user root;"):
    """Small and long files, one connection each and many files over one connection."""
    # Until the link stands a connection moves what the kernel's buffers take, 5 to 10 MB: a long transfer is long.
    big = run.scaled(512 << 20) if run.hosts else 512 << 20
    server = nginx(run, {"empty": 0, "one": 1, "small": 1000, "mid": 300_000, "big": big}, user)
    www = f"{server.dir}/www"
    for name in ("empty", "one", "small", "mid"):
        curl_file(run, server, name, f"{run.dir}/got")
        same(f"{run.dir}/got", f"{www}/{name}", name)
    curl_file(run, server, "big", f"{run.dir}/got")
    same(f"{run.dir}/got", f"{www}/big", "big")
    run.payload += big
    third = big // 3
    if run.times > 1:
        curl_pipe(run, run.times, server.url("big"))(f"{www}/big", "big, again and again")
        kids = [(i, curl_pipe(run, run.times, "-r", f"{i * third}-{(i + 1) * third - 1}", server.url("big"))) for i in range(3)]
        for i, ends_as in kids:
            with open(f"{www}/big", "rb") as f, open(f"{run.dir}/part", "wb") as part:
                f.seek(i * third)
                part.write(f.read(third))
            ends_as(f"{run.dir}/part", "a range, again and again")
        run.payload += run.times * (big + 3 * third)
        return
    # Ranges in parallel, put together again.
    kids = [run.background("curl", "-sS", "--fail", "-r", r, "-o", f"{run.dir}/part{i}", server.url("big"))
            for i, r in enumerate((f"0-{third - 1}", f"{third}-{2 * third - 1}", f"{2 * third}-"))]
    for kid in kids:
        out, _ = common.communicate(kid, CLIENT_LIMIT)
        if kid.returncode != 0:
            raise Failure(f"curl of a range: {out.strip()}")
    with open(f"{run.dir}/got", "wb") as f:
        for i in range(3):
            with open(f"{run.dir}/part{i}", "rb") as part:
                f.write(part.read())
    same(f"{run.dir}/got", f"{www}/big", "ranges of big")
    run.payload += big


def nginx_curl_dropped(run):
    """Workers that gave up root, as packages configure it."""
    nginx_curl(run, user="")


def wrk(run, server, name, connections, secs, *more):
    text = run.client("wrk", "-t2", f"-c{connections}", f"-d{secs}s", *more, server.url(name))
    requests, _, _, _ = apps.parse_wrk(text)
    if requests == 0:
        raise Failure("wrk completed no request")
    return requests


def nginx_wrk(run):
    server = nginx(run, {"k": 1024, "m": 1 << 20})
    secs = run.scaled(4, 2) * run.times
    # 1 KiB bodies come with about 240 bytes of head; the requests are not counted.
    run.payload += wrk(run, server, "k", 32, secs) * 1024
    run.payload += wrk(run, server, "m", 8, secs) << 20


def nginx_wrk_close(run):
    server = nginx(run, {"k": 1024})
    wrk(run, server, "k", 32, 2, "-H", "Connection: close")
    # One request each, by a client that waits for no link.
    run.brief = {"server", "client"}


def nginx_ab(run):
    server = nginx(run, {"k": 1024, "m": 1 << 20})
    for name, count, flags in (("k", run.scaled(20000, 4000), ["-k"]), ("k", run.scaled(8000, 2000), []),
                               ("m", run.scaled(600, 200), ["-k"])):
        text = run.client("ab", "-q", *flags, "-n", str(count), "-c", "16", server.url(name))
        for line, want in (("Complete requests:", count), ("Failed requests:", 0)):
            got = [int(x.split()[-1]) for x in text.splitlines() if x.startswith(line)]
            if got != [want]:
                raise Failure(f"ab {name} {' '.join(flags)}: {line} {got}, not {want}")
        if "Non-2xx" in text:
            raise Failure(f"ab {name}: answers other than 2xx")
    run.lasting = not run.hosts


def load_across(run, server, client, seconds, times, disturb):
    """Load on new and on kept connections while `disturb` has the server replace its workers so many times, and a download
    across it all. No request fails. How often kept connections ended, by kind of end: {name: (how often, of how many)}.

    wrk is what people use, but counts a kept connection's end as an error, though the server may end an idle one. So beside it
    there is a client that asks again after such an end, where no byte of an answer came, and to which all else is a failure."""
    def start(*cmd):
        return common.start(cmd, env=run.env[client], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    connections = 16
    fresh = start("wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-H", "Connection: close", server.url("k"))
    kept = start("wrk", "-t1", f"-c{connections}", f"-d{seconds}s", server.url("k"))
    steady = start(sys.executable, CLIENTS, "steady", server.host, str(server.port), "/k", f"{server.dir}/www/k", str(STEADY),
                   str(seconds), str(run.seed))
    fetch = start("curl", "-sS", "--fail", "--limit-rate", "24M", "-o", f"{run.dir}/got", server.url("big"))
    moments = disturb()
    text, _ = common.communicate(fresh, CLIENT_LIMIT)
    if fresh.returncode != 0:
        raise Failure(f"wrk: {text[-300:]}")
    if apps.parse_wrk(text)[0] == 0:
        raise Failure("wrk completed no request")
    text, _ = common.communicate(kept, CLIENT_LIMIT)
    if kept.returncode != 0 or "Non-2xx" in text:
        raise Failure(f"wrk on kept connections: {text[-300:]}")
    ended = ends(text)
    text, _ = common.communicate(steady, CLIENT_LIMIT)
    if steady.returncode != 0:
        raise Failure(f"a request failed: {text.strip()[-300:]}")
    seen = json.loads(text)
    if not seen["answers"]:
        raise Failure("nothing was answered on kept connections")
    for late in (r for r in seen["retried"] if not ended_as_idle(r, moments, seen["slowest"])):
        raise Failure(f"a connection ended that had been asked, and no workers were replaced: {late} of {moments}")
    out, _ = common.communicate(fetch, CLIENT_LIMIT)
    if fetch.returncode != 0:
        raise Failure(f"a download meanwhile: {out.strip()}")
    same(f"{run.dir}/got", f"{server.dir}/www/big", "a download meanwhile")
    mostly_idle = sum(r[0] for r in seen["retried"])
    run.notes.append(f"{client}: {seen['answers']} answers on kept connections, {len(seen['retried'])} asked again " +
                     f"({mostly_idle} that mostly wait), {seen['idle_ends']} ended idle, {seen['announced']} by announcement; " +
                     f"of wrk's {ended} ended")
    most, of = times * STEADY, times * STEADY * 3 // 4
    every = len(seen["retried"]) + seen["idle_ends"] + seen["announced"]
    return {"asked again on a connection that mostly waits": (mostly_idle, of),
            "more ends than one for each connection and generation of workers": (max(0, every - most), most),
            "more ends in wrk": (max(0, ended - times * connections), times * connections)}


STEADY = 32     # its connections; three of four mostly wait


def ended_as_idle(retried, moments, slowest):
    """Did this connection belong to workers that were told to go, and end then? Each moment begins before that and is over
    when they all were about to. Who was told no longer answers without announcing the end; and what was asked before, and had
    longer than any answer took, was answered."""
    _, answered, asked, ended = retried
    return any(answered <= over and asked >= begin - slowest and ended >= begin for begin, over in moments)


def chance(count, of, plain, of_plain):
    """How probable so many are, or more, of those that both have together, were they spread by chance (Fisher's exact test)."""
    both, every = count + plain, of + of_plain
    ways = (math.comb(of, n) * math.comb(of_plain, both - n) for n in range(count, min(both, of) + 1))
    return sum(ways) / math.comb(every, both)


def compared(run, across):
    """`across(server, client)`, the names of roles: plain beside what is tried, which is to end no more connections."""
    def named(server, client):
        try:
            return across(server, client)
        except Failure as e:
            raise Failure(f"{client}: {e}") from None
    if run.mode == "plain":
        return named("server", "client")
    for role in ("server", "client"):
        run.role(f"plain-{role}", role, plain=True)
    plain = named("plain-server", "plain-client")
    tried = named("server", "client")
    for what, (count, of) in tried.items():
        # Those of one worker end together, and a slower server has more requests under way: only what is far from chance counts.
        if chance(count, of, *plain[what]) < 1e-4:
            raise Failure(f"{what}: {count} of {of}, plain {plain[what][0]}")


def two_workers(server):
    """Its workers, when the master has started them."""
    common.until(lambda: len(server.workers()) == 2, "nginx has not started its workers", 30)
    return server.workers()


def workers_go(pids):
    """Waits until these have been told to go, as their names say."""
    common.until(lambda: all("shutting down" in line or line in ("", "?") for line in map(common.command_line, pids)),
                 "old workers of nginx were not told to go", 30)


def ends(text):
    """Kept connections that wrk says ended; no other error may be in its answer."""
    found = re.search(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", text)
    if not found:
        return 0
    connect, read, write, late = map(int, found.groups())
    if connect or late:
        raise Failure(f"wrk on kept connections: {found.group(0)}")
    return read + write


def nginx_reload(run):
    """Reloads under load: no request fails."""
    reloads = 3

    def across(role, client):
        server = nginx(run, {"k": 1024, "big": 64 << 20}, role=role)
        first = two_workers(server)

        def disturb():
            moments = []
            for _ in range(reloads):
                time.sleep(1)       # load between reloads, not a wait for a state
                old, begin = server.workers(), time.monotonic()
                run.client("nginx", "-e", server.log, "-c", server.conf, "-p", server.dir, "-s", "reload", env=run.env[role])
                workers_go(old)
                moments.append((begin, time.monotonic()))
            return moments
        seen = load_across(run, server, client, 5, reloads, disturb)
        common.until_gone(first, "old workers of nginx")
        return seen
    compared(run, across)


def nginx_upgrade(run):
    """A new binary in place of the old one under load: a master beside the master, by exec with the listening sockets, until
    the old one is told to go."""
    def across(role, client):
        # It clears its environment, and keeps for a new binary what it is told to: this one has a report of its own.
        new, last = f"new-{role}", f"last-{client}"
        run.role(new, role)
        run.role(last, client)
        kept = " ".join(f"env {name};" for name in run.env[role] if name in ("LD_PRELOAD", "SLUICE_CONFIG", *run.extra))
        if run.preloaded[role]:
            kept += f" env SLUICE_REPORT={run.reports[new]};"
        server = nginx(run, {"k": 1024, "big": 64 << 20}, main=kept, role=role, daemon=True)
        old = server.pid
        workers = two_workers(server)

        def disturb():
            time.sleep(1)       # load at each stage, not a wait for a state
            os.kill(old, signal.SIGUSR2)
            common.until(lambda: server.pid not in (None, old), "there is no new master", 30)
            two_workers(server)
            time.sleep(1)
            begin = time.monotonic()
            os.kill(old, signal.SIGWINCH)
            workers_go(workers)
            over = time.monotonic()
            time.sleep(1)
            os.kill(old, signal.SIGQUIT)
            return [(begin, over)]
        seen = load_across(run, server, client, 5, 1, disturb)
        common.until_gone([old, *workers], "the old nginx")
        # A connection's first megabytes go by TCP: so long a transfer that they are few.
        times = max(4, run.times)
        curl_pipe(run, times, server.url("big"), client=last)(f"{server.dir}/www/big", "a download from the new nginx")
        run.least[last] = 0.5 if run.hosts else LINK_SHARE
        return seen
    compared(run, across)
