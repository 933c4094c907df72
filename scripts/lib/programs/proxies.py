"""A proxy in the middle: haproxy between nginx and curl, tinyproxy, also for apt."""

import gzip
import hashlib
import os
import random
import shutil
import signal
import subprocess

import apps
import common
from common import Failure
from .run import Skip, fail, same
from .web import curl_file, curl_pipe, nginx


HAPROXY_CONF = """
global
    nbthread 2
    stats socket {dir}/haproxy.sock
defaults
    mode {mode}
    timeout connect 10s
    timeout client 60s
    timeout server 60s
    {options}
listen front
    bind {host}:{port}
    server nginx {back}
"""


def haproxy(run, mode="http", options=""):
    # A connection's first megabytes go by TCP: as many as its buffers take before the reader's first read.
    big = run.scaled(128 << 20, 128 << 20)
    back = nginx(run, {"k": 1024, "big": big}, role="back")
    run.hops = 2
    port = run.free_port()
    conf = f"{run.dir}/haproxy.cfg"
    with open(conf, "w") as f:
        f.write(HAPROXY_CONF.format(dir=run.dir, host=run.address("server"), port=port,
                                    back=f"{back.host}:{back.port}", mode=mode, options=options))
    child = common.start(["haproxy", "-db", "-f", conf], env=run.env["server"], stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL)
    # SIGUSR1: haproxy finishes what it has and exits.
    run.serve(child, lambda: common.end(child, signal.SIGUSR1) or fail("haproxy did not end on SIGUSR1"))
    common.wait_listening(port, child)
    url = f"http://{run.address('server')}:{port}"
    for _ in range(2):
        curl_file(run, f"{url}/big", "", f"{run.dir}/got")
        same(f"{run.dir}/got", f"{back.dir}/www/big", f"haproxy ({mode})")
    if run.times > 1:
        # Before it a new process of curl's has loaded what it needs, while two connections fill their buffers.
        times = 2 * run.times
        curl_pipe(run, times, f"{url}/big")(f"{back.dir}/www/big", f"haproxy ({mode}), again and again")
        run.payload += times * big
    text = run.client("wrk", "-t1", "-c16", "-d2s", f"{url}/k")
    if apps.parse_wrk(text)[0] == 0:
        raise Failure("wrk completed no request")
    run.payload += 2 * big


def haproxy_http(run):
    haproxy(run)


def haproxy_tcp(run):
    haproxy(run, "tcp")


def haproxy_tcp_splice(run):
    """With `splice-auto` instead it seldom does."""
    haproxy(run, "tcp", "option splice-request\n    option splice-response")


# --- tinyproxy ---

TINYPROXY_CONF = """
Listen {host}
Port {port}
{user}
Timeout 60
MaxClients 100
LogFile "{dir}/tinyproxy.log"
LogLevel Error
PidFile "{dir}/tinyproxy.pid"
ConnectPort {back}
DisableViaHeader Yes
"""


def tinyproxy(run, back):
    """Before a server, with a thread for each client. Its URL."""
    port, host = run.free_port(), run.address("server")
    log = f"{run.dir}/tinyproxy.log"
    root = os.geteuid() == 0
    open(log, "w").close()
    if root:
        shutil.chown(log, "nobody")
    with open(f"{run.dir}/tinyproxy.conf", "w") as f:
        f.write(TINYPROXY_CONF.format(host=host, port=port, dir=run.dir, back=back.port, user="User nobody" if root else ""))
    child = common.start(["tinyproxy", "-d", "-c", f"{run.dir}/tinyproxy.conf"], env=run.env["server"], stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL)
    run.serve(child, lambda: common.end(child) or fail("tinyproxy did not end on SIGTERM"))
    common.wait_listening(port, child)
    run.hops = 2
    return f"http://{host}:{port}"


def tinyproxy_curl(run):
    """Requests through it, and a tunnel (CONNECT)."""
    # Until the link stands a connection moves what the kernel's buffers take, 5 to 10 MB.
    big = 128 << 20 if run.hosts else 192 << 20
    back = nginx(run, {"k": 1024, "big": big}, role="back")
    proxy = tinyproxy(run, back)
    for name, more in (("k", ()), ("k", ("-p",)), ("big", ()), ("big", ("-p",))):
        run.client("curl", "-sS", "--fail", "-x", proxy, *more, "-o", f"{run.dir}/got", back.url(name))
        same(f"{run.dir}/got", f"{back.dir}/www/{name}", f"tinyproxy {' '.join(more)}")
    if not run.hosts:
        run.payload += 2 * big


# --- apt ---

def release(place, seed, packages):
    """A repository of packages that nobody installs: its index is long, which is what is fetched."""
    rng = random.Random(seed)
    where = f"{place}/dists/stable/main/binary-all"
    os.makedirs(where)
    index = "".join(f"Package: package{n}\nVersion: 1.{n}\nArchitecture: all\nMaintainer: Nobody <nobody@example.org>\n"
                    f"Filename: pool/package{n}.deb\nSize: {n}\nSHA256: {rng.randbytes(32).hex()}\n"
                    f"Description: {rng.randbytes(300).hex()}\n\n" for n in range(packages)).encode()
    lines = []
    for name, data in (("Packages", index), ("Packages.gz", gzip.compress(index, 1))):
        with open(f"{where}/{name}", "wb") as f:
            f.write(data)
        lines.append(f" {hashlib.sha256(data).hexdigest()} {len(data)} main/binary-all/{name}\n")
    with open(f"{place}/dists/stable/Release", "w") as f:
        f.write("Suite: stable\nCodename: stable\nArchitectures: all\nComponents: main\n"
                "Date: Sat, 01 Aug 2026 00:00:00 UTC\nSHA256:\n" + "".join(lines))
    return index


def apt_update(run):
    """Its methods are programs of their own, as another user, in a pipeline of requests."""
    if shutil.which("apt-get") is None:
        raise Skip("no apt-get")
    back = nginx(run, {}, role="back")
    # More than a connection moves until its link stands.
    index = release(f"{back.dir}/www", run.seed, 8000 if run.hosts else 30000)
    proxy = tinyproxy(run, back)
    for place in ("state/lists/partial", "cache/archives/partial", "etc/parts", "etc/trusted"):
        os.makedirs(f"{run.dir}/apt/{place}")
    with open(f"{run.dir}/apt/etc/sources.list", "w") as f:
        f.write(f"deb [trusted=yes] http://{back.host}:{back.port}/ stable main\n")
    status = f"{run.dir}/apt/state/status"
    open(status, "w").close()
    options = [x for o in (f"Dir::State={run.dir}/apt/state", f"Dir::Cache={run.dir}/apt/cache", f"Dir::State::status={status}",
                           f"Dir::Etc::sourcelist={run.dir}/apt/etc/sources.list", f"Dir::Etc::sourceparts={run.dir}/apt/etc/parts",
                           f"Acquire::http::Proxy={proxy}", "Acquire::Languages=none", "Acquire::GzipIndexes=false")
               for x in ("-o", o)]
    if os.geteuid() == 0:
        common.finished(["chown", "-R", "_apt", f"{run.dir}/apt"], 20)
    # A warning of apt's, that it could not get something, is no status.
    run.client("apt-get", *options, "-o", "APT::Update::Error-Mode=any", "update")
    lists = f"{run.dir}/apt/state/lists"
    got = [name for name in os.listdir(lists) if name.endswith("_Packages")]
    if len(got) != 1:
        raise Failure(f"apt-get update left {os.listdir(lists)}")
    with open(f"{lists}/{got[0]}", "rb") as f:
        if f.read() != index:
            raise Failure("apt-get update: another index arrived than was sent")
