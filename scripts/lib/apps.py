"""Real programs as paired cases: redis, nginx with wrk and curl, iperf3. See paired.py."""

import json
import os
import re
import shutil
import signal
import subprocess
import time

import common
from common import Failure
from paired import Result, children_cpu

HOST = "127.0.0.1"


def _run(cmd, side, place, limit, **kw):
    """A client to its end: (output, child). Its library reports."""
    out = subprocess.PIPE
    client = common.start(cmd, env=side.env(report=True), cpu=place.client, stdout=out, stderr=out, text=True, **kw)
    try:
        text, errors = common.communicate(client, limit)
    except common.Hang as e:
        trace = common.backtraces(common.tree(client.pid))
        common.end(client, signal.SIGKILL)
        raise Failure(f"hang: {e}\n{trace}")
    if client.returncode != 0:
        raise Failure(f"{' '.join(cmd)}: status {client.returncode}: {(errors or text).strip()[-400:]}")
    return text


# --- redis ---

class Redis:
    def __init__(self, side, place, directory=None):
        self.port = common.free_port()
        self.dir = directory or common.workplace()
        self.child = common.start(
            ["redis-server", "--port", str(self.port), "--bind", HOST, "--save", "", "--appendonly", "no",
             "--dir", self.dir, "--daemonize", "no", "--maxclients", "2000"],
            env=side.env(), cpu=place.server, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        common.wait_listening(self.port, self.child)

    def stop(self):
        if not common.end(self.child, signal.SIGTERM):
            raise Failure("redis-server did not end on SIGTERM")


# Requests a connection at least, about 40 bytes each with the answer: five or six times the default
# threshold, so that a run is not mostly the time before the upgrade.
REDIS_LEAST = 5000


def redis(clients, pipeline, test="get", size=3):
    """Requests a second of redis-benchmark. It counts requests, not seconds, so their number follows
    the rate that was seen; a run that was over too soon is repeated with more."""
    memory = {}

    def run(side, place, secs):
        key = (side.preload, str(place))
        for _ in range(4):
            count = max(clients * REDIS_LEAST, int(memory.get(key, 20000 * pipeline) * secs))
            result = redis_run(side, place, secs, clients, count, "-P", str(pipeline), "-d", str(size), "-t", test)
            memory[key] = result.rate
            if result.secs >= 0.5 * secs:
                break
        return result
    return run


def redis_run(side, place, secs, clients, count, *flags):
    side.fresh_report(os.path.dirname(side.report) if side.report else None)
    cpu = children_cpu()
    server = Redis(side, place)
    try:
        text = _run(redis_bench(server.port, clients, count, *flags), side, place, 120 + 20 * secs)
    finally:
        server.stop()
    fields = _redis_fields(text)
    rate = float(fields[1])
    return Result(rate, "/s", count, count / rate, children_cpu() - cpu, float(fields[4]) * 1e6,
                  float(fields[6]) * 1e6, side.counters())


def _redis_fields(text):
    """What `redis-benchmark --csv` printed of its one test."""
    lines = text.splitlines()
    if len(lines) != 2:
        raise Failure(f"redis-benchmark printed no result: {text[-300:]}")
    return [f.strip('"') for f in lines[1].split(",")]


def redis_bench(port, clients, count, *flags):
    return ["redis-benchmark", "-h", HOST, "-p", str(port), "-c", str(clients), "-n", str(count),
            *(flags or ("-t", "get")), "--csv"]


def redis_beside(server_side, side, place, beside, clients=10, count=100000):
    """Requests a second of redis-benchmark while another program runs on the same processor:
    `beside(port)` starts that one for this server. It must outlast the benchmark."""
    server = Redis(server_side, place)
    try:
        other = beside(server.port)
        try:
            fields = _redis_fields(_run(redis_bench(server.port, clients, count), side, place, 120))
            if common.stat_of(other.pid)[0] == "Z":
                raise Failure(f"{other.args[0]} ended early, beside redis-benchmark")
        finally:
            common.end(other)
    finally:
        server.stop()
    return float(fields[1])


# --- nginx ---

NGINX_CONF = """
daemon {daemon};
{user}
{main}
worker_processes {workers};
pid {dir}/nginx.pid;
error_log {dir}/error.log warn;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    sendfile on;
    tcp_nopush on;
    keepalive_requests 1000000000;
    open_file_cache max=100;
    client_body_temp_path {dir}/t1; proxy_temp_path {dir}/t2; fastcgi_temp_path {dir}/t3;
    uwsgi_temp_path {dir}/t4; scgi_temp_path {dir}/t5;
    types {{ }}
    default_type application/octet-stream;
    {more}
    server {{
        listen {host}:{port} backlog=4096;
        root {dir}/www;
    }}
}}
"""


def random_file(path, size, seed):
    """`size` bytes that repeat nowhere near, the same for the same seed."""
    import random
    with open(path, "wb") as f:
        r = random.Random(seed)
        left = size
        while left > 0:
            piece = min(left, 1 << 20)
            f.write(r.randbytes(piece))
            left -= piece
    os.chmod(path, 0o644)


class Nginx:
    """Master and workers on a port of their own, with the given files {name: size}. As a daemon it can replace its binary:
    `pid` is the master's, whoever that is at the time."""

    def __init__(self, env, files=None, workers=1, cpu=None, user="user root;", main="", more="", directory=None,
                 wrapper=(), host=HOST, daemon=False):
        self.dir = directory or common.workplace()
        self.host, self.port = host, common.free_port()
        self.env = env
        os.makedirs(f"{self.dir}/www", exist_ok=True)
        for n, (name, size) in enumerate((files or {}).items()):
            random_file(f"{self.dir}/www/{name}", size, n)
        self.conf = f"{self.dir}/nginx.conf"
        with open(self.conf, "w") as f:
            f.write(NGINX_CONF.format(user=user if os.geteuid() == 0 else "", workers=workers, dir=self.dir,
                                      host=host, port=self.port, main=main, more=more,
                                      daemon="on" if daemon else "off"))
        self.log = f"{self.dir}/error.log"
        self.daemon = daemon
        # By its path, which it executes again to replace itself.
        self.child = common.start([*wrapper, shutil.which("nginx"), "-e", self.log, "-c", self.conf, "-p", self.dir], env=env, cpu=cpu,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL if daemon else subprocess.PIPE, text=True)
        if daemon:
            # It listens before it goes to the background.
            common.wait(self.child, 20)
            common.until(lambda: self.pid is not None, "nginx wrote no file with its pid")
        else:
            common.wait_listening(self.port, self.child)

    @property
    def pid(self):
        if not self.daemon:
            return self.child.pid
        try:
            with open(f"{self.dir}/nginx.pid") as f:
                return int(f.read() or 0) or None
        except FileNotFoundError:
            return None

    def workers(self):
        return common.children_of(self.pid)

    def url(self, name):
        return f"http://{self.host}:{self.port}/{name}"

    def stop(self):
        """SIGQUIT: workers finish and exit by `exit`. TERM after five seconds."""
        if self.daemon:
            pid = self.pid
            os.kill(pid, signal.SIGQUIT)
            return common.until_gone([pid], "nginx", 15)
        if self.child.returncode is not None:
            raise Failure(f"nginx ended early with {self.child.returncode}: {self.complaints()}")
        if not common.end(self.child, signal.SIGQUIT, 15):
            raise Failure("nginx did not end on SIGQUIT")

    def complaints(self):
        try:
            with open(self.log) as f:
                return f.read().strip()
        except FileNotFoundError:
            return ""


_WRK_UNIT = {"": 1, "k": 1e3, "M": 1e6, "us": 1e3, "ms": 1e6, "s": 1e9}


def parse_wrk(text):
    """(requests, seconds, p50 ns, p99 ns); Failure if any request went wrong."""
    bad = re.search(r"(Non-2xx.*|Socket errors.*)", text)
    if bad:
        raise Failure(f"wrk: {bad.group(1)}")
    total = re.search(r"(\d+) requests in ([\d.]+)(us|ms|s|m),", text)
    if not total:
        raise Failure(f"wrk printed no result: {text[-300:]}")
    secs = float(total.group(2)) * {"us": 1e-6, "ms": 1e-3, "s": 1, "m": 60}[total.group(3)]
    quantile = {}
    for q, v, unit in re.findall(r"^\s+(50|99)%\s+([\d.]+)(us|ms|s)$", text, re.M):
        quantile[q] = float(v) * _WRK_UNIT[unit]
    return int(total.group(1)), secs, quantile.get("50", 0), quantile.get("99", 0)


def nginx_wrk(size, connections, close=False):
    """Requests a second of wrk, one worker."""
    def run(side, place, secs):
        server = Nginx(side.env(), {"file": size}, cpu=place.server)
        try:
            # wrk counts whole seconds.
            text = _run(["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(secs))}s", "--latency",
                         *(["-H", "Connection: close"] if close else []), server.url("file")],
                        side, place, 60 + 10 * secs)
        finally:
            server.stop()
        requests, took, p50, p99 = parse_wrk(text)
        return Result(requests / took, "/s", requests, took, 0, p50, p99, side.counters())
    return run


def _curl(size, words, side, place, limit):
    """How long one curl takes that is given `words(url)`, of a file of this size."""
    server = Nginx(side.env(), {"file": size}, cpu=place.server)
    try:
        begin = time.monotonic()
        _run(["curl", "-sS", "--fail", *words(server.url("file"))], side, place, limit)
        return time.monotonic() - begin
    finally:
        server.stop()


def nginx_curl(size, fetches):
    """Bytes a second of one curl that fetches a file several times over one connection."""
    def run(side, place, secs):
        took = _curl(size, lambda url: ["-o", "/dev/null", url] * fetches, side, place, 120)
        return Result(size * fetches / took, "B/s", fetches, took, counters=side.counters())
    return run


def nginx_curl_close(size, fetches):
    """Fetches a second of one curl with a new connection for each."""
    def words(url):
        return ["-H", "Connection: close", "-o", "/dev/null", f"{url}?[1-{fetches}]"]

    def run(side, place, secs):
        took = _curl(size, words, side, place, 60 + 10 * secs)
        return Result(fetches / took, "/s", fetches, took, counters=side.counters())
    return run


# --- iperf3 ---

def iperf3(streams):
    """Bytes a second that the receiver of iperf3 saw."""
    def run(side, place, secs):
        port = common.free_port()
        server = common.start(["iperf3", "-s", "-1", "-B", HOST, "-p", str(port)], env=side.env(), cpu=place.server,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            common.wait_listening(port, server)
            text = _run(["iperf3", "-c", HOST, "-p", str(port), "-P", str(streams), "-t", str(max(1, round(secs))),
                         "-J"], side, place, 60 + 10 * secs)
            common.wait(server, 20)
        finally:
            common.end(server)
        end = json.loads(text)["end"]
        got = end["sum_received"]
        return Result(got["bytes"] / got["seconds"], "B/s", got["bytes"], got["seconds"], counters=side.counters())
    return run
