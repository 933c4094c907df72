"""Databases, caches, queues and directories, each with a client that people use."""

import getpass
import glob
import os
import random
import signal

import common
from common import Failure
from programs.run import sha256
from .use import HOST, use


def as_user(user):
    """The words that tell a server which root starts to run as `user`."""
    return ("-u", user) if os.geteuid() == 0 else ()


# --- redis ---

def redis(run):
    """Starts a server: the words that lead redis-cli and redis-benchmark to it."""
    port = run.free_port()
    run.server("redis-server", "--port", str(port), "--bind", HOST, "--save", "", "--dir", run.dir,
               "--enable-debug-command", "yes", port=port)
    return "-h", HOST, "-p", str(port)


def redis_benchmark(run, clients, requests, tests):
    """Runs redis-benchmark: what it asked, and the server's digest of all keys and values."""
    where = redis(run)
    with run.timed():
        text = run.client("redis-benchmark", *where, "-c", str(clients), "-n", str(requests),
                          "-t", tests, "--csv")
    run.result([line.split(",")[0] for line in text.splitlines()])
    run.result(run.client("redis-cli", *where, "get", "counter:__rand_int__"))
    run.result(run.client("redis-cli", *where, "debug", "digest"))


REDIS = ("redis-server:redis-server", "redis-benchmark:redis-tools")


@use("redis-benchmark -c 50, short", "20,000 requests each of set, get, incr, lpush", REDIS)
def redis_short(run):
    redis_benchmark(run, 50, 20000, "set,get,incr,lpush")


@use("redis-benchmark -c 50", "100,000 requests each of get, incr", REDIS, least=0.5)
def redis_long(run):
    redis_benchmark(run, 50, 100000, "get,incr")


@use("redis-benchmark -c 1", "40,000 requests of incr", REDIS, least=0.7)
def redis_one(run):
    redis_benchmark(run, 1, 40000, "incr")


@use("redis-cli --pipe", "mass insertion of 400,000 keys, and half of them read back", REDIS,
     least=0.7)
def redis_pipe(run):
    where = redis(run)
    keys = [f"key{i}" for i in range(400000)]
    mass = "".join(f"*3\r\n$3\r\nSET\r\n${len(k)}\r\n{k}\r\n${len(k) * 4}\r\n{k * 4}\r\n"
                   for k in keys)
    asked = "".join("mget " + " ".join(keys[i:i + 1000]) + "\n" for i in range(0, 200000, 1000))
    with run.timed():
        said = run.client("redis-cli", *where, "--pipe", data=mass.encode()).decode()
        got = run.client("redis-cli", *where, data=asked)
    run.result(said.splitlines()[-1])
    run.result(got)
    run.result(run.client("redis-cli", *where, "debug", "digest"))


# --- MariaDB ---

MARIADB = ("mariadbd:mariadb-server", "mariadb:mariadb-client")


def mariadb(run, name="mariadb", *flags):
    """Starts a server with a user and an empty database: the words that lead its clients to it."""
    place, port = f"{run.dir}/{name}", run.free_port()
    init = run.write(f"{name}.sql", (
        "SET sql_log_bin = 0;", "CREATE USER u@'%' IDENTIFIED BY 'secret';",
        "GRANT ALL ON *.* TO u@'%';", "CREATE DATABASE d;"))
    run.prepare("mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={place}",
                "--auth-root-authentication-method=normal", "--skip-test-db")
    run.server("mariadbd", "--no-defaults", "--user=root", f"--datadir={place}",
               f"--socket={place}/socket", f"--port={port}", f"--bind-address={HOST}",
               "--innodb-flush-log-at-trx-commit=2", "--max-allowed-packet=64M",
               f"--pid-file={place}/pid", f"--init-file={init}", "--skip-name-resolve", *flags,
               port=port)
    return f"--host={HOST}", f"--port={port}", "--user=u", "--password=secret"


def sql(run, where, text):
    """Asks a server of MariaDB: its answer."""
    return run.client("mariadb", "--no-defaults", *where, "-N", "-B", "d", data=text)


def tables_sum(run, where, *tables):
    """Asks for the checksum and the number of rows of each table."""
    return sql(run, where, "".join(f"CHECKSUM TABLE {t}; SELECT count(*) FROM {t};"
                                   for t in tables))


def statements(rows, each):
    """SQL that makes a table `t` and fills it, `each` rows at a time."""
    rng = random.Random(rows)
    yield "CREATE TABLE t (id INT PRIMARY KEY, n BIGINT, name VARCHAR(80), data BLOB);"
    for first in range(0, rows, each):
        yield "INSERT INTO t VALUES " + ",".join(
            f"({i},{rng.getrandbits(60)},'name {i}',x'{rng.randbytes(100).hex()}')"
            for i in range(first, first + each)) + ";"


@use("MariaDB, mariadb, mariadb-dump", "60,000 rows loaded, selected and dumped", MARIADB,
     least=0.7)
def mariadb_dump(run):
    where = mariadb(run)
    load = run.write("load.sql", statements(60000, 500))
    with run.timed():
        run.client("mariadb", "--no-defaults", *where, "d", stdin=load)
        rows = sql(run, where, "SELECT id, n, name, hex(data) FROM t ORDER BY id;")
        dump = run.client("mariadb-dump", "--no-defaults", *where, "--skip-dump-date",
                          "--hex-blob", "--order-by-primary", "d")
    run.result([rows, dump, tables_sum(run, where, "t")])


@use("MariaDB, sysbench", "OLTP, read and write: 4 threads, then one",
     (*MARIADB, "sysbench:sysbench"), least=0.7)
def mariadb_sysbench(run):
    where = mariadb(run)
    flags = ("--db-driver=mysql", "--mysql-db=d", "--tables=2", "--table-size=10000",
             "--rand-seed=7", "--time=0", *(word.replace("--", "--mysql-") for word in where))
    run.client("sysbench", "oltp_read_write", *flags, "prepare")
    tables = ("sbtest1", "sbtest2")
    for threads, kind, events in ((4, "oltp_read_only", 2000), (1, "oltp_read_write", 500)):
        with run.timed():
            text = run.client("sysbench", kind, *flags, f"--threads={threads}",
                              f"--events={events}", "run")
        counts = [line.split()[:2] for line in text.splitlines()
                  if line.lstrip().startswith(("read:", "write:", "other:", "transactions:"))]
        run.result([counts, tables_sum(run, where, *tables)])
    with run.timed():
        run.client("sysbench", "oltp_read_write", *flags, "--threads=4", "--events=1000", "run")
    run.result([sql(run, where, f"SELECT count(*), sum(id) FROM {t};") for t in tables])


@use("MariaDB, replication", "60,000 rows from one server to another", MARIADB, least=0.7)
def mariadb_replication(run):
    first = mariadb(run, "first", "--server-id=1", "--log-bin=log")
    second = mariadb(run, "second", "--server-id=2", "--read-only", "--log-bin=log")
    load = run.write("load.sql", statements(60000, 500))
    port = first[1].partition("=")[2]
    sql(run, second, f"CHANGE MASTER TO master_host='{HOST}', master_port={port}, master_user='u',"
                     " master_password='secret', master_use_gtid=slave_pos; START SLAVE;")
    with run.timed():
        run.client("mariadb", "--no-defaults", *first, "d", stdin=load)
        place = sql(run, first, "SELECT @@gtid_binlog_pos;").strip()
        run.result(sql(run, second, f"SELECT master_gtid_wait('{place}', 60);"))
    sums = [tables_sum(run, where, "t") for where in (first, second)]
    run.result([place, sums, sums[0] == sums[1]])
    sql(run, second, "STOP SLAVE;")


BLOBS = """
import hashlib, random, sys, pymysql
db = pymysql.connect(host=sys.argv[1], port=int(sys.argv[2]), user="u", password="secret",
                     database="d", autocommit=True)
ask, rng = db.cursor(), random.Random(5)
ask.execute("CREATE TABLE blobs (id INT PRIMARY KEY, data LONGBLOB)")
sizes = [1, 100, 70000, 250000, 1 << 20, 3 << 20] * 4
sent = [rng.randbytes(size) for size in sizes]
for i, data in enumerate(sent):
    ask.execute("INSERT INTO blobs VALUES (%s, _binary %s)", (i, data))
h = hashlib.sha256()
for _ in range(3):
    for i, data in enumerate(sent):
        ask.execute("SELECT data, sha2(data, 256) FROM blobs WHERE id = %s", (i,))
        got, there = ask.fetchone()
        assert got == data and there == hashlib.sha256(data).hexdigest(), i
        h.update(got)
ask.execute("SELECT count(*), sum(length(data)) FROM blobs")
print(h.hexdigest(), ask.fetchone())
"""


@use("MariaDB, PyMySQL", "24 blobs, 18 MB in all, written, and each read three times", MARIADB,
     ("pymysql",), least=0.7)
def mariadb_blobs(run):
    where = mariadb(run)
    run.asked(run.python, "-c", BLOBS, HOST, where[1].partition("=")[2])


# --- PostgreSQL ---

POSTGRES = ("pgbench:postgresql", "setpriv:util-linux")


def become():
    """The words before a server that refuses to run as root, and its user."""
    if os.geteuid() != 0:
        return [], getpass.getuser()
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"], "postgres"


def tool(name):
    """A program of PostgreSQL, not Debian's wrapper of it."""
    return os.path.join(sorted(glob.glob("/usr/lib/postgresql/*/bin"))[-1], name)


def postgres(run):
    """Starts a server: the words that lead its clients to it."""
    port, (words, user) = run.free_port(), become()
    place = run.folder("postgres", user)
    run.prepare(*words, tool("initdb"), "-D", place, "-A", "trust", "-N", "--no-locale",
                "-E", "UTF8")
    run.server(*words, tool("postgres"), "-D", place, "-h", HOST, "-p", str(port), "-k", "",
               "-c", "fsync=off", "-c", "autovacuum=off", port=port, sig=signal.SIGINT)
    where = "-h", HOST, "-p", str(port), "-U", user
    common.until(lambda: answers(run, where), "PostgreSQL lets nobody in", 20)
    return where


def answers(run, where):
    try:
        run.prepare(tool("psql"), *where, "-l")
        return True
    except Failure:
        return False


def psql(run, where, text):
    """Asks a server of PostgreSQL: its answer."""
    return run.client(tool("psql"), "-X", "-q", "-A", "-t", *where, "-v", "ON_ERROR_STOP=1",
                      "-d", "postgres", "-c", text)


def bouncer(run, where):
    """Starts pgbouncer before a server: the words that lead its clients to it."""
    port = run.free_port()
    words, user = become()
    users = run.write("users", [f'"{user}" ""'])
    conf = run.write("pgbouncer.ini", (
        "[databases]", f"postgres = host={HOST} port={where[3]}", "[pgbouncer]",
        f"listen_addr = {HOST}", f"listen_port = {port}", "unix_socket_dir =",
        f"auth_file = {users}", "auth_type = trust", "pool_mode = transaction",
        "default_pool_size = 4"))
    run.server(*words, "pgbouncer", conf, port=port)
    return "-h", HOST, "-p", str(port), "-U", user


SUMS = """
select count(*), md5(string_agg(concat_ws(' ', tid, bid, aid, delta), ',' order by aid, delta, tid))
from pgbench_history;
select md5(string_agg(abalance::text, ',' order by aid)) from pgbench_accounts;
select md5(string_agg(tbalance::text, ',' order by tid)) from pgbench_tellers;
"""


def transactions(run, server, where, count):
    """Runs pgbench: its sums do not depend on the order of transactions."""
    run.client(tool("pgbench"), "-i", "-q", *server, "postgres")
    with run.timed():
        run.client(tool("pgbench"), "-n", "-c", "4", "-j", "2", "-t", str(count),
                   "--random-seed=3", *where, "postgres")
        run.client(tool("pgbench"), "-n", "-S", "-c", "4", "-j", "2", "-t", str(count * 4),
                   "--random-seed=4", *where, "postgres")
    run.result(psql(run, where, SUMS))


def copy(run, where):
    """Copies a table in and, ten times, out."""
    rng = random.Random(9)
    rows = run.write("rows", (f"{n}\t{rng.randbytes(400).hex()}" for n in range(10000)))
    psql(run, where, "create unlogged table rows (n int, line text)")
    with run.timed():
        psql(run, where, f"\\copy rows from '{rows}'")
        psql(run, where, "\\copy (select n, line from rows, generate_series(1, 10) g order by g, n)"
                         f" to '{run.dir}/got'")
    run.result([sha256(f"{run.dir}/got"), sha256(f"{run.dir}/got") == sha256(rows, 10)])
    run.result(psql(run, where, "select count(*), md5(string_agg(line, ',' order by n)) from rows"))


@use("PostgreSQL, pgbench", "800 transactions by each of 4 clients, then 3,200 selects",
     POSTGRES, least=0.5)
def postgres_pgbench(run):
    where = postgres(run)
    transactions(run, where, where, 800)


@use("PostgreSQL, psql", "COPY of 8 MB in, of 80 MB out", POSTGRES, least=0.7)
def postgres_copy(run):
    copy(run, postgres(run))


@use("pgbouncer, PostgreSQL, pgbench", "500 transactions by each of 4 clients, then 2,000 selects;"
     " COPY of 8 MB in, of 80 MB out", (*POSTGRES, "pgbouncer:pgbouncer"), least=0.7)
def postgres_pgbouncer(run):
    server = postgres(run)
    where = bouncer(run, server)
    transactions(run, server, where, 500)
    copy(run, where)


# --- memcached ---

MEMCACHED = ("memcached:memcached",)

CACHE = """
import hashlib, random, sys
from pymemcache.client.base import Client
cache, rng = Client((sys.argv[1], int(sys.argv[2])), no_delay=True), random.Random(6)
values = {f"key{i}": rng.randbytes(rng.choice((10, 100, 1000, 10000, 200000))) for i in range(600)}
for key, value in values.items():
    assert cache.set(key, value, noreply=False)
h, keys = hashlib.sha256(), list(values)
for n in range(10):
    for key in keys:
        got = cache.get(key)
        assert got == values[key], key
        h.update(got)
    for i in range(0, 600, 20):
        got = cache.get_many(keys[i:i + 20])
        assert list(map(got.get, keys[i:i + 20])) == list(map(values.get, keys[i:i + 20])), i
    cache.set("counter", "0", noreply=False)
    for i in range(300):
        last = cache.incr("counter", i)
    h.update(str(last).encode())
print(h.hexdigest(), sum(cache.delete(key, noreply=False) for key in keys))
"""


def memcached(run):
    port = run.free_port()
    run.server("memcached", "-p", str(port), "-U", "0", "-l", HOST, "-m", "256", *as_user("root"),
               port=port)
    return port


@use("memcached, pymemcache", "600 values set, and each read twenty times", MEMCACHED,
     ("pymemcache",), least=0.7)
def memcached_python(run):
    run.asked(run.python, "-c", CACHE, HOST, str(memcached(run)))


@use("twemproxy, memcached, pymemcache", "the same through a proxy before two servers",
     (*MEMCACHED, "nutcracker:nutcracker"), ("pymemcache",), least=0.7)
def memcached_twemproxy(run):
    servers, port, stats = [memcached(run), memcached(run)], run.free_port(), run.free_port()
    conf = run.write("nutcracker.yml", (
        "pool:", f"  listen: {HOST}:{port}", "  hash: fnv1a_64", "  distribution: ketama",
        "  servers:", *(f"  - {HOST}:{server}:1" for server in servers)))
    run.server("nutcracker", "-c", conf, "-a", HOST, "-s", str(stats), port=port,
               sig=signal.SIGINT)
    run.asked(run.python, "-c", CACHE, HOST, str(port))


# --- queues ---

TASKS = """
import hashlib, os
from celery import Celery, signals
app = Celery("tasks", broker=os.environ["BROKER"], backend=os.environ["BROKER"])

@app.task
def add(x, y):
    return x + y

@app.task
def turned(text):
    return hashlib.sha256(text.encode()).hexdigest() + text[::-1]

@signals.worker_ready.connect
def ready(**_):
    open("ready", "w").close()
"""

CALLS = """
import hashlib
from celery import group
from tasks import add, turned
print(sum(group(add.s(i, i * i) for i in range(400))().get(timeout=60)))
texts = group(turned.s(f"text {i} " * 3000) for i in range(60))().get(timeout=60)
print(hashlib.sha256("".join(texts).encode()).hexdigest())
"""


@use("celery, redis", "460 tasks for a worker with two processes", REDIS, ("celery", "redis"),
     least=0.7)
def celery(run):
    port = redis(run)[3]
    run.write("tasks.py", [TASKS])
    env = {"BROKER": f"redis://{HOST}:{port}/0", "PYTHONPATH": run.dir}
    run.server(run.python, "-m", "celery", "-A", "tasks", "worker", "-c", "2",
               env=env, cwd=run.dir)
    run.says(f"{run.dir}/ready", limit=60)
    run.asked(run.python, "-c", CALLS, env=env, cwd=run.dir)


PUTS = """
import random, sys, greenstalk
queue, rng = greenstalk.Client((sys.argv[1], int(sys.argv[2])), encoding=None), random.Random(8)
for i in range(4000):
    queue.put(rng.randbytes(rng.choice((20, 300, 4000, 60000))))
"""

RESERVES = """
import hashlib, sys, greenstalk
queue, h = greenstalk.Client((sys.argv[1], int(sys.argv[2])), encoding=None), hashlib.sha256()
for i in range(4000):
    job = queue.reserve(timeout=60)
    h.update(job.body)
    queue.delete(job)
print(h.hexdigest())
"""


@use("beanstalkd, greenstalk", "4,000 jobs from one client to another", ("beanstalkd:beanstalkd",),
     ("greenstalk",), least=0.7)
def beanstalkd(run):
    port = run.free_port()
    run.server("beanstalkd", "-l", HOST, "-p", str(port), port=port)
    with run.timed():
        producer = run.background(run.python, "-c", PUTS, HOST, str(port))
        run.result(run.client(run.python, "-c", RESERVES, HOST, str(port)))
        run.ended(producer)


# --- directories ---

def entries(first, last):
    """People of a directory, as LDIF."""
    rng = random.Random(first)
    for i in range(first, last):
        yield (f"dn: uid=u{i},dc=example\nobjectClass: inetOrgPerson\nuid: u{i}\ncn: Name {i}\n"
               f"sn: Name\nmail: u{i}@example.com\ndescription: {rng.randbytes(128).hex()}\n")


@use("slapd, ldapsearch, ldapadd", "20,000 entries searched three times, 2,000 added",
     ("slapd:slapd", "ldapsearch:ldap-utils"), least=0.7)
def slapd(run):
    port = run.free_port()
    conf = run.write("slapd.conf", (
        *(f"include /etc/ldap/schema/{s}.schema" for s in ("core", "cosine", "inetorgperson")),
        "modulepath /usr/lib/ldap", "moduleload back_mdb", "sizelimit unlimited", "database mdb",
        "suffix dc=example", "rootdn cn=admin,dc=example", "rootpw secret", "maxsize 1073741824",
        f"directory {run.folder('ldap')}", "dbnosync", "index uid eq"))
    top = "dn: dc=example\nobjectClass: dcObject\nobjectClass: organization\ndc: example\no: x\n"
    run.prepare("slapadd", "-q", "-f", conf, "-l",
                run.write("old.ldif", [top, *entries(0, 20000)]))
    more = run.write("new.ldif", entries(20000, 22000))
    run.server("slapd", "-h", f"ldap://{HOST}:{port}", "-f", conf, "-d", "0", port=port)
    where = ("-x", "-H", f"ldap://{HOST}:{port}", "-D", "cn=admin,dc=example", "-w", "secret")
    with run.timed():
        run.client("ldapadd", *where, "-f", more)
        for wanted in ("(objectClass=*)", "(uid=u21*)", "(description=*)"):
            run.result(run.client("ldapsearch", *where, "-LLL", "-b", "dc=example", wanted))


@use("bind9, dig +tcp", "AXFR of a zone of 300,000 records", ("named:bind9", "dig:bind9-dnsutils"),
     least=0.6)
def bind9(run):
    place, port, rng = run.folder("bind", "bind"), run.free_port(), random.Random(7)
    run.write("bind/zone", (
        "$TTL 600", "@ IN SOA ns admin 1 3600 600 86400 600", "@ NS ns", "ns A 127.0.0.1",
        *(f"host{i} A 10.{i >> 16}.{i >> 8 & 255}.{i & 255}\n"
          f'host{i} TXT "{rng.randbytes(32).hex()}"' for i in range(150000))))
    conf = run.write("named.conf", (
        f'options {{ directory "{place}"; listen-on port {port} {{ {HOST}; }}; recursion no;',
        'listen-on-v6 { none; }; pid-file none; session-keyfile none; allow-transfer { any; }; };',
        'controls {}; zone "example" { type primary; file "zone"; notify no; };'))
    run.server("named", "-f", "-c", conf, *as_user("bind"), port=port)
    dig = ("dig", f"@{HOST}", "-p", str(port), "+tcp", "+noall", "+answer", "example")
    common.until(lambda: run.client(*dig, "SOA"), "named has no zone", 20)
    run.asked(*dig, "AXFR")


# --- etcd ---

@use("etcd, etcdctl, curl", "2,000 keys by its JSON interface, then all of them by etcdctl",
     ("etcd:etcd-server", "etcdctl:etcd-client", "curl:curl"))
def etcd(run):
    port, peers = run.free_port(), run.free_port()
    url, peer = f"http://{HOST}:{port}", f"http://{HOST}:{peers}"
    run.server("etcd", "--data-dir", f"{run.dir}/etcd", "--listen-client-urls", url,
               "--advertise-client-urls", url, "--listen-peer-urls", peer, "--unsafe-no-fsync",
               "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
               port=port)
    ctl = ("etcdctl", "--endpoints", url)
    version3 = {"ETCDCTL_API": "3"}
    run.client(*ctl, "endpoint", "health", env=version3)
    puts = run.write("puts", (
        f'next\nurl = {url}/v3/kv/put\n'
        f'data = "{{\\"key\\":\\"{key}\\",\\"value\\":\\"{key * 20}\\"}}"'
        for key in (f"{i:08d}" for i in range(2000))))
    with run.timed():
        said = run.client("curl", "-sS", "--fail", "-K", puts)
        got = run.client(*ctl, "get", "", "--prefix", "--hex", env=version3)
        run.client(*ctl, "put", "big", env=version3, data="x" * 1000000)
        big = run.client(*ctl, "get", "big", "--print-value-only", env=version3)
    run.result([said.count("revision"), got, big])
