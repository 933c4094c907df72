"""redis, memcached and PostgreSQL under their own clients."""

import getpass
import glob
import os
import random
import shutil
import signal
import subprocess
import sys

import common
from common import Failure
from .run import CLIENTS, fail, same


def redis(run):
    port = run.free_port()
    place = f"{run.dir}/redis"
    os.makedirs(place)
    child = common.start(["redis-server", "--port", str(port), "--bind", run.address("server"), "--save", "", "--dir", place,
                          "--proto-max-bulk-len", "512mb", "--protected-mode", "no"], env=run.env["server"], stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL)

    def stop():
        if not common.end(child):
            raise Failure("redis-server did not end on SIGTERM")
        if child.returncode != 0:
            raise Failure(f"redis-server: status {child.returncode}")
    run.serve(child, stop)
    common.wait_listening(port, child)
    return port


def redis_benchmark(run):
    """All its tests: fifty new connections for each."""
    benchmark(run, ["-c", "50", "-n", str(run.scaled(20000, 5000) // run.slow)],
              ["-c", "50", "-P", "16", "-n", str(run.scaled(200000, 50000) // run.slow), "-t", "set,get,lpush,lrange_100"])
    run.lasting = not run.hosts


def redis_benchmark_long(run):
    """Few connections that move much, in both directions."""
    count = run.scaled(8000, 8000)
    benchmark(run, ["-c", "8", "-d", "100000", "-n", str(count), "-t", "set,get"])
    run.payload += count * 2 * 100000


def benchmark(run, *variants):
    port = redis(run)
    for flags in variants:
        text = run.client("redis-benchmark", "-h", run.address("server"), "-p", str(port), "--csv", *flags)
        rates = [float(line.split(",")[1].strip('"')) for line in text.splitlines()[1:] if "," in line]
        if not rates or min(rates) <= 0:
            raise Failure(f"redis-benchmark {' '.join(flags)}: {text[-200:]}")


def redis_cli(run):
    port = redis(run)
    cli = ("redis-cli", "-h", run.address("server"), "-p", str(port))
    blob = random.Random(run.seed).randbytes(run.scaled(24 << 20) if run.hosts else 24 << 20)
    if run.client(*cli, "-x", "set", "blob", data=blob).strip() != b"OK":
        raise Failure("redis-cli -x set: not OK")
    # redis-cli adds a newline to what it prints raw.
    if run.client(*cli, "--raw", "get", "blob", data=b"")[:-1] != blob:
        raise Failure("the value came back changed")
    # Mass insertion: one stream of commands, one of answers, both at once.
    count = run.scaled(200000, 50000)
    mass = b"".join(b"*3\r\n$3\r\nSET\r\n$%d\r\nkey%d\r\n$%d\r\n%d\r\n" % (len(b"key%d" % i), i, len(b"%d" % i), i)
                    for i in range(count))
    answer = run.client(*cli, "--pipe", data=mass).decode()
    if f"errors: 0, replies: {count}" not in answer:
        raise Failure(f"redis-cli --pipe: {answer.strip()[-200:]}")
    if run.client(*cli, "dbsize").strip() != str(count + 1):
        raise Failure("keys are missing")
    # A client that sleeps in a blocking command and is woken by another.
    sleeper = run.background(*cli, "blpop", "queue", "30")
    run.client(*cli, "rpush", "queue", "hello")
    out, _ = common.communicate(sleeper, 35)
    if "hello" not in out:
        raise Failure(f"blpop: {out.strip()!r}")
    script = "".join(f"get key{i}\n" for i in range(0, min(count, 5000)))
    if run.client(*cli, data=script).split() != [str(i) for i in range(0, min(count, 5000))]:
        raise Failure("5,000 gets on one connection: wrong answers")
    if not run.hosts:
        run.payload += 2 * len(blob) + len(mass)
        # The client writes the value by one call, which the kernel has whole; and the first megabytes back are by TCP.
        run.floor = 0.3


def memcached(run):
    port = run.free_port()
    user = ["-u", "root"] if os.geteuid() == 0 else []
    child = common.start(["memcached", "-p", str(port), "-U", "0", "-l", run.address("server"), "-m", "256", "-t", "4", *user],
                         env=run.env["server"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    run.serve(child, lambda: common.end(child) or fail("memcached did not end on SIGTERM"))
    common.wait_listening(port, child)
    # A connection's first megabytes go by TCP.
    count = run.scaled(40, 40) * run.times
    run.client(sys.executable, CLIENTS, "memcached", run.address("server"), str(port), str(run.seed), str(count))
    run.payload += count * 4 * 8 * 2 * 60000     # about


def postgres(run):
    """A cluster of its own, as another user if we are root: it refuses that. What clients need to hear."""
    place, port = f"{run.dir}/postgres", run.free_port()
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
    tools = f"{found[-1]}/" if found else ""
    user, become = getpass.getuser(), []
    os.makedirs(place)
    if os.geteuid() == 0:
        user, become = "postgres", ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        shutil.chown(place, "postgres", "postgres")
    common.finished([*become, f"{tools}initdb", "-D", place, "-A", "trust", "-N", "--no-locale", "-E", "UTF8"], 60)
    with open(f"{place}/pg_hba.conf", "a") as f:
        f.write("host all all 0.0.0.0/0 trust\n")
    child = common.start([*become, f"{tools}postgres", "-D", place, "-h", run.address("server"), "-p", str(port), "-k", "",
                          "-c", "fsync=off"], env=run.env["server"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    # SIGINT: whoever is connected is sent away.
    run.serve(child, lambda: common.end(child, signal.SIGINT, 20) or fail("postgres did not end on SIGINT"))
    common.wait_listening(port, child)
    where = ("-h", run.address("server"), "-p", str(port), "-U", user)
    common.until(lambda: run.client("psql", *where, "-l", status=None), "postgres lets nobody in", 20)
    return where


def pgbench_reconnect(run):
    """A new connection, and with it a new process of the server, for each transaction."""
    where = postgres(run)
    run.client("pgbench", "-i", "-q", *where, "postgres")
    clients, count = 4, run.scaled(150, 50) // min(run.slow, 5)
    run.client("pgbench", "-n", "-C", "-c", str(clients), "-j", "2", "-t", str(count), *where, "postgres")
    seen = run.client("psql", "-X", "-q", "-A", "-t", *where, "-d", "postgres", "-c", "select count(*) from pgbench_history")
    if seen.strip() != str(clients * count):
        raise Failure(f"pgbench -C: {seen.strip()} transactions, {clients * count} wanted")


def pgbench(run):
    """Its transactions, then a table there and a larger one back."""
    where = postgres(run)

    def psql(sql):
        return run.client("psql", "-X", "-q", "-A", "-t", *where, "-d", "postgres", "-v", "ON_ERROR_STOP=1", "-c", sql).strip()

    run.client("pgbench", "-i", "-q", *where, "postgres")
    clients, count = 4, run.scaled(1000, 300)
    run.client("pgbench", "-n", "-c", str(clients), "-j", "2", "-t", str(count), *where, "postgres")
    sums = psql("select count(*), sum(delta) from pgbench_history")
    if sums.split("|")[0] != str(clients * count):
        raise Failure(f"pgbench: {sums}, {clients * count} transactions wanted")
    for table, column in (("accounts", "abalance"), ("tellers", "tbalance"), ("branches", "bbalance")):
        if psql(f"select {clients * count}, sum({column}) from pgbench_{table}") != sums:
            raise Failure(f"pgbench: the sum of {table} is not that of the history")
    rng = random.Random(run.seed)
    with open(f"{run.dir}/rows", "w") as f:
        for n in range(100):
            f.write(f"{n}\t{rng.randbytes(32 << 10).hex()}\n")
    # Little of it: a server slower than its client's writing gets most of that by TCP.
    psql("create unlogged table rows (n int, line text); alter table rows alter line set storage external")
    psql(f"\\copy rows from '{run.dir}/rows'")
    # Long beside what its seven connections pay TCP first. Two files of it are in a guest's memory.
    rounds = 60
    with open(f"{run.dir}/rows", "rb") as f, open(f"{run.dir}/many", "wb") as many:
        many.write(f.read() * rounds)
    psql(f"\\copy (select n, line from rows, generate_series(1, {rounds}) g order by g, n) to '{run.dir}/got'")
    same(f"{run.dir}/many", f"{run.dir}/got", "a table")
    run.payload += os.path.getsize(f"{run.dir}/many")
