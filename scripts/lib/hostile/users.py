"""Real programs between users: accelerated, as `sluice stat` counts it while they run."""

import glob
import os
import pwd
import shutil
import signal
import subprocess
import time

import common
from common import Failure
from . import kernel
from .victims import BOB, Skip, by_link

ALWAYS = False


def run_as(place, uid, words, log, **settings):
    """A program with the library, as this user."""
    env = place.environment("new", SLUICE_UPGRADE="eager", **settings)

    def before_exec():
        if uid:
            kernel.become(uid, gid_of(uid))
        kernel.call("prctl", kernel.PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    with open(log, "ab") as f:
        child = subprocess.Popen(words, env=env, preexec_fn=before_exec, stdin=subprocess.DEVNULL, stdout=f, stderr=f, cwd=place.dir)
    child.usage = None
    common._children[child.pid] = child
    return child


def gid_of(uid):
    try:
        return pwd.getpwuid(uid).pw_gid
    except KeyError:
        return uid


def user(name):
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise Skip(f"there is no user {name}")


def need(*tools):
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    for tool in tools:
        if not shutil.which(tool):
            raise Skip(f"{tool} is not installed")


def folder(place, name, uid=0):
    path = f"{place.dir}/{name}-{time.monotonic_ns()}"
    os.makedirs(path)
    os.chown(path, uid, gid_of(uid) if uid else 0)
    return path


def accelerated(client, pids, port, limit=20):
    """While the client runs some process of the server has a connection at this port that moves bytes by a link, and the client too."""
    def ends():
        return [c for pid in (*pids(), client.pid) for c in safe_stat(pid)]

    def linked():
        server = [c for c in ends() if c["local"].endswith(f":{port}")]
        mine = [c for c in ends() if c["peer"].endswith(f":{port}")]
        return any(map(by_link, server)) and any(map(by_link, mine))

    deadline = time.monotonic() + limit * common.SLOW
    last = []
    while not linked():
        last = ends() or last
        if time.monotonic() > deadline or os.waitid(os.P_PID, client.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            raise Failure(f"not accelerated: {[(c['pid'], c['local'], c['peer'], c['reason']) for c in last]}")
        time.sleep(0.02)


def safe_stat(pid):
    try:
        return common.stat(pid)
    except Failure:
        return []


def ended(child, log, limit=30):
    if common.wait(child, limit) != 0:
        with open(log, errors="replace") as f:
            raise Failure(f"{child.args[0]}: status {child.returncode}: {f.read()[-300:]}")


def nginx_and_curl(place):
    """root's master, www-data's workers, somebody's curl."""
    need("nginx", "curl")
    www, port, path = user("www-data"), common.free_port(), folder(place, "nginx")
    blob, times = os.urandom(50_000), 3000
    with open(f"{path}/blob", "wb") as f:
        f.write(blob)
    with open(f"{path}/conf", "w") as f:
        f.write(f"daemon off; user www-data; worker_processes 2; pid {path}/pid; error_log {path}/log; events {{}}\n"
                f"http {{ access_log off; keepalive_requests 100000;"
                f" client_body_temp_path {path}/a; proxy_temp_path {path}/b; fastcgi_temp_path {path}/c;"
                f" uwsgi_temp_path {path}/d; scgi_temp_path {path}/e; sendfile on;"
                f" server {{ listen 127.0.0.1:{port}; root {path}; }} }}\n")
    server = run_as(place, 0, ["nginx", "-c", f"{path}/conf"], f"{path}/out")
    common.wait_listening(port, server)
    got = f"{folder(place, 'curl', BOB)}/got"
    # One connection.
    client = run_as(place, BOB, ["curl", "-sS", f"http://127.0.0.1:{port}/blob?[1-{times}]"], got)
    accelerated(client, lambda: common.children_of(server.pid), port)
    for pid in common.children_of(server.pid):
        if os.stat(f"/proc/{pid}").st_uid not in (www, 0):
            raise Failure("the workers are not www-data's")
    ended(client, got)
    with open(got, "rb") as f:
        if any(f.read(len(blob)) != blob for _ in range(times)) or f.read():
            raise Failure("other bytes have come")
    if not common.end(server):
        raise Failure("nginx did not end on SIGTERM")


def redis_of_another_user(place):
    need("redis-server", "redis-cli")
    uid, port = user("redis"), common.free_port()
    path = folder(place, "redis", uid)
    log = f"{place.dir}/redis.log"
    server = run_as(place, uid, ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", path,
                                 "--protected-mode", "no"], log)
    common.wait_listening(port, server)
    client = run_as(place, BOB, ["redis-cli", "-p", str(port), "-r", "300", "-i", "0.01", "append", "key", "x" * 3000], log)
    accelerated(client, lambda: [server.pid], port)
    ended(client, log)
    done = subprocess.run(["redis-cli", "-p", str(port), "strlen", "key"], env=common.environment(False), capture_output=True, text=True,
                          timeout=20)
    if done.stdout.split()[-1:] != [str(300 * 3000)]:
        raise Failure(f"redis has {done.stdout!r}")
    if not common.end(server):
        raise Failure("redis-server did not end on SIGTERM")


def postgres_of_another_user(place):
    need("pgbench")
    uid, port = user("postgres"), common.free_port()
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
    if not found:
        raise Skip("postgres is not installed")
    path, log = folder(place, "postgres", uid), f"{place.dir}/postgres.log"
    become = ["setpriv", f"--reuid={uid}", f"--regid={gid_of(uid)}", "--clear-groups"]
    common.finished([*become, f"{found[-1]}/initdb", "-D", path, "-A", "trust", "-N", "--no-locale", "-E", "UTF8"], 60)
    server = run_as(place, uid, [f"{found[-1]}/postgres", "-D", path, "-h", "127.0.0.1", "-p", str(port), "-k", "", "-c", "fsync=off"], log)
    common.wait_listening(port, server)
    where = ("-h", "127.0.0.1", "-p", str(port), "-U", "postgres")
    common.until(lambda: subprocess.run(["psql", *where, "-l"], env=common.environment(False), capture_output=True).returncode == 0,
                 "postgres lets nobody in", 20, 0.2)
    common.finished(["pgbench", "-i", "-q", *where, "postgres"], 60)
    client = run_as(place, BOB, ["pgbench", "-n", "-S", "-c", "2", "-T", "5", *where, "postgres"], log)
    accelerated(client, lambda: common.children_of(server.pid), port)
    ended(client, log)
    if not common.end(server, signal.SIGINT, 20):
        raise Failure("postgres did not end on SIGINT")


def ssh_as_root(place):
    """sshd begins anew by exec, with the connection at other numbers: on TCP, and it says why; its bytes are right."""
    need("sshd", "ssh", "ssh-keygen")
    path, port = folder(place, "ssh"), common.free_port()
    os.chmod(path, 0o700)
    for key in ("host", "user"):
        common.finished(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{path}/{key}"], 20)
    shutil.copy(f"{path}/user.pub", f"{path}/authorized")
    os.makedirs("/run/sshd", exist_ok=True)
    log = f"{path}/log"
    server = run_as(place, 0, [shutil.which("sshd"), "-D", "-e", "-f", "/dev/null", "-p", str(port), "-h", f"{path}/host", "-o",
                               f"AuthorizedKeysFile={path}/authorized", "-o", "StrictModes=no", "-o", "ListenAddress=127.0.0.1", "-o",
                               "PermitRootLogin=yes", "-o", f"PidFile={path}/pid"], log)
    common.wait_listening(port, server)
    client = run_as(place, 0, ["ssh", "-F", "/dev/null", "-p", str(port), "-i", f"{path}/user", "-o", "StrictHostKeyChecking=no", "-o",
                               f"UserKnownHostsFile={path}/known", "root@127.0.0.1", "for i in 1 2 3 4 5 6 7 8; do head -c 400000 /dev/zero; "
                               "sleep 0.2; done"], f"{path}/out")
    seen = []

    def told():
        seen[:] = [c for c in safe_stat(client.pid) if c["peer"].endswith(f":{port}")] or seen
        return any(c["rx_tcp"] + by_link(c) > 400_000 for c in seen)

    common.until(told, "ssh moves nothing", 20)
    ended(client, f"{path}/out")
    if os.path.getsize(f"{path}/out") < 3_200_000:
        raise Failure(f"{os.path.getsize(f'{path}/out')} bytes have come")
    if not any(map(by_link, seen)) and seen[0]["reason"] in ("none", "met", "proof-failed"):
        raise Failure(f"on TCP for {seen[0]['reason']}")
    common.end(server)
    return "accelerated" if any(map(by_link, seen)) else f"on TCP: {seen[0]['reason']}"


TESTS = [nginx_and_curl, redis_of_another_user, postgres_of_another_user, ssh_as_root]
