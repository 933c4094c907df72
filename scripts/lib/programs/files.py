"""Trees of files and single ones: rsync, FTP, git over HTTP."""

import os
import random
import shutil
import subprocess
import sys

import apps
import common
from common import Failure
from .run import CLIENTS, Skip, fail, same, sha256


RSYNCD_CONF = """
use chroot = no
pid file = {dir}/rsyncd.pid
log file = {dir}/rsyncd.log
uid = {uid}
gid = {gid}
[there]
    path = {dir}/there
    read only = no
"""


def tree_of_files(place, seed):
    """A few hundred files of all sizes. Their bytes."""
    rng = random.Random(seed)
    total = 0
    for n in range(300):
        os.makedirs(f"{place}/{n % 10}", exist_ok=True)
        size = rng.choice((0, 1, 100, 5000, 70000, 400000))
        apps.random_file(f"{place}/{n % 10}/file{n}", size, seed + n)
        total += size
    return total


def same_trees(one, other, what):
    done = subprocess.run(["diff", "-r", one, other], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise Failure(f"{what}: {done.stdout[-300:]}")


def rsync(run):
    """A tree to its daemon, the same with differences, and back; a long file both ways. By TCP, but for what comes first: who
    receives is two processes, which share the connection."""
    port, where = run.free_port(), run.address("server")
    here, there, back = (f"{run.dir}/{name}" for name in ("here", "there", "back"))
    os.makedirs(there)
    tree_of_files(here, run.seed)
    with open(f"{run.dir}/rsyncd.conf", "w") as f:
        f.write(RSYNCD_CONF.format(dir=run.dir, uid=os.geteuid(), gid=os.getegid()))
    child = common.start(["rsync", "--daemon", "--no-detach", f"--config={run.dir}/rsyncd.conf", f"--port={port}", f"--address={where}"],
                         env=run.env["server"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    run.serve(child, lambda: common.end(child) or fail("rsync did not end on SIGTERM"))
    common.wait_listening(port, child)
    url = f"rsync://{where}:{port}/there/"
    run.client("rsync", "-a", f"{here}/", url)
    same_trees(here, there, "rsync to the daemon")
    # Blocks of an old copy are found again.
    with open(f"{here}/big", "wb") as f:
        f.write(random.Random(run.seed).randbytes(64 << 20))
    run.client("rsync", "-a", "--whole-file", f"{here}/", url)
    with open(f"{here}/big", "r+b") as f:
        f.seek(20 << 20)
        f.write(b"another middle" * 1000)
    run.client("rsync", "-a", "--no-whole-file", "--ignore-times", "--delete", f"{here}/", url)
    same_trees(here, there, "rsync of differences")
    run.client("rsync", "-a", url, f"{back}/")
    same_trees(here, back, "rsync from the daemon")


# --- FTP ---

VSFTPD_CONF = """
listen=YES
listen_address={host}
listen_port={port}
background=NO
anonymous_enable=YES
no_anon_password=YES
anon_root={dir}/ftp
anon_upload_enable=YES
anon_umask=022
write_enable=YES
local_enable=NO
connect_from_port_20=NO
pasv_min_port={low}
pasv_max_port={high}
secure_chroot_dir={dir}/empty
ftp_username={user}
nopriv_user={user}
xferlog_enable=NO
"""


def ftp(run):
    """vsftpd, as it is delivered: a process for each client, in a sandbox, whose data connections another one opens."""
    if os.geteuid() != 0:
        raise Skip("vsftpd is for root")
    port, where = run.free_port(), run.address("server")
    low = run.free_port()
    for place in ("ftp", "ftp/up", "empty"):
        os.makedirs(f"{run.dir}/{place}")
    shutil.chown(f"{run.dir}/ftp/up", "daemon")
    big = 128 << 20
    apps.random_file(f"{run.dir}/ftp/big", big, run.seed)
    for name, size in (("small", 3000), ("empty", 0)):
        apps.random_file(f"{run.dir}/ftp/{name}", size, run.seed)
    with open(f"{run.dir}/vsftpd.conf", "w") as f:
        f.write(VSFTPD_CONF.format(host=where, port=port, dir=run.dir, low=low, high=low + 20, user="daemon"))
    child = common.start([shutil.which("vsftpd"), f"{run.dir}/vsftpd.conf"], env=run.env["server"], stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL)
    run.serve(child, lambda: common.end(child))
    common.wait_listening(port, child)
    url = f"ftp://{where}:{port}"
    for name in ("small", "empty", "big"):
        run.client("curl", "-sS", "--fail", "-o", f"{run.dir}/got", f"{url}/{name}")
        same(f"{run.dir}/got", f"{run.dir}/ftp/{name}", f"FTP of {name}")
    run.client("curl", "-sS", "--fail", "-T", f"{run.dir}/ftp/big", f"{url}/up/big")
    same(f"{run.dir}/ftp/up/big", f"{run.dir}/ftp/big", "FTP to the server")
    run.client(sys.executable, CLIENTS, "ftp", where, str(port), "small", sha256(f"{run.dir}/ftp/small"), "20")


# --- git over http ---

APACHE_CONF = """
ServerName localhost
Listen {host}:{port}
PidFile {dir}/apache.pid
ErrorLog {dir}/apache.log
DocumentRoot {dir}/www
{user}
LoadModule mpm_event_module {modules}/mod_mpm_event.so
LoadModule authz_core_module {modules}/mod_authz_core.so
LoadModule alias_module {modules}/mod_alias.so
LoadModule env_module {modules}/mod_env.so
LoadModule cgid_module {modules}/mod_cgid.so
ScriptSock {dir}/cgid.sock
SetEnv GIT_PROJECT_ROOT {dir}/www
SetEnv GIT_HTTP_EXPORT_ALL 1
ScriptAlias /git/ {backend}/
<Directory />
    Require all granted
</Directory>
"""
APACHE_MODULES = "/usr/lib/apache2/modules"


def git_http(run):
    """apache with git's own CGI program: clone, push and fetch, with files at rest on the same server."""
    port, where = run.free_port(), run.address("server")
    if not os.path.isdir(APACHE_MODULES):
        raise Skip("no apache2")
    # Until the link stands a connection moves what the kernel's buffers take, 5 to 10 MB.
    more = 32 << 20 if run.hosts else 96 << 20
    project, one, two = f"{run.dir}/www/there.git", f"{run.dir}/one", f"{run.dir}/two"
    settings = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_TERMINAL_PROMPT": "0"}
    for name in ("AUTHOR", "COMMITTER"):
        settings |= {f"GIT_{name}_NAME": "Somebody", f"GIT_{name}_EMAIL": "somebody@example.org"}
    run.env["client"].update(settings)
    os.makedirs(project)

    def git(*words, place=run.dir):
        # What cannot be compressed is not tried to be.
        return run.client("git", "-c", "core.compression=0", "-C", place, *words)
    git("init", "-q", "--bare", "-b", "main", project)
    git("config", "http.receivepack", "true", place=project)
    backend = git("--exec-path").strip() + "/git-http-backend"
    root = os.geteuid() == 0
    if root:
        common.finished(["chown", "-R", "nobody:nogroup", project], 20)
    with open(f"{run.dir}/apache.conf", "w") as f:
        f.write(APACHE_CONF.format(host=where, port=port, dir=run.dir, modules=APACHE_MODULES, backend=backend,
                                   user="User nobody\nGroup nogroup" if root else ""))
    child = common.start(["apache2", "-d", run.dir, "-f", f"{run.dir}/apache.conf", "-D", "FOREGROUND"], env=run.env["server"],
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    run.serve(child, lambda: common.end(child) or fail("apache2 did not end on SIGTERM"))
    common.wait_listening(port, child)
    url = f"http://{where}:{port}/git/there.git"
    git("clone", "-q", url, one)
    total = tree_of_files(f"{one}/files", run.seed)
    git("add", "-A", place=one)
    git("commit", "-q", "-m", "Files", place=one)
    git("push", "-q", "origin", "HEAD:main", place=one)
    git("clone", "-q", url, two)
    same_trees(f"{one}/files", f"{two}/files", "git clone")
    with open(f"{two}/files/more", "wb") as f:
        f.write(random.Random(run.seed).randbytes(more))
    git("add", "-A", place=two)
    git("commit", "-q", "-m", "More", place=two)
    git("push", "-q", "origin", "HEAD:main", place=two)
    git("pull", "-q", place=one)
    same_trees(f"{one}/files", f"{two}/files", "git pull")
    git("fsck", "--full", place=one)
    if not run.hosts:
        run.payload += 2 * (total + more)
