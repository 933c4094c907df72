"""Tools that move data over one connection or a few: netcats, copies, disks, screens, letters."""

import hashlib
import json
import os
import re
import shutil
import sys

import common
from programs.files import RSYNCD_CONF, VSFTPD_CONF, tree_of_files
from programs.run import sha256
from programs.streams import Sshd
from .sites import fetch, nginx
from .use import HOST, use


def tree_sum(place, skip=()):
    """Returns a checksum of the names and the contents of all files below a directory."""
    h = hashlib.sha256()
    for directory, below, names in os.walk(place):
        below[:] = sorted(d for d in below if d not in skip)
        for name in sorted(names):
            path = os.path.join(directory, name)
            h.update(f"{os.path.relpath(path, place)} {sha256(path)}\n".encode())
    return h.hexdigest()


def blob(run, place, name, size):
    """Puts a file of so many bytes into a directory."""
    os.rename(run.file(f"{name}-{size}", size), f"{place}/{name}")


# --- netcats ---

def caught(run, port, listener, sender, size=300 << 20):
    """Sends a file, the input of `sender`, to `listener`, which prints it and ends."""
    got = f"{run.dir}/got"
    run.both_ends(port, listener, sender, stdin=run.file("sent", size), stdout=got)
    run.result(sha256(got))


@use("nc, nc", "200 MiB by `nc -N`, the listener's input closed",
     ("nc.openbsd:netcat-openbsd",))
def nc(run):
    port = run.free_port()
    caught(run, port, ("nc.openbsd", "-l", "-N", HOST, str(port)),
           ("nc.openbsd", "-N", HOST, str(port)), 200 << 20)


@use("ncat, ncat", "300 MiB from one to the other, the listener's input closed", ("ncat:ncat",))
def ncat(run):
    port = run.free_port()
    caught(run, port, ("ncat", "-l", HOST, str(port)), ("ncat", HOST, str(port)))


@use("ncat, ncat", "300 MiB by `--send-only` to `--recv-only`", ("ncat:ncat",))
def ncat_one_way(run):
    port = run.free_port()
    caught(run, port, ("ncat", "-l", "--recv-only", HOST, str(port)),
           ("ncat", "--send-only", HOST, str(port)))


@use("nc, pv, dd", "300 MiB by `pv | nc -N` to `nc | dd`",
     ("nc.openbsd:netcat-openbsd", "pv:pv"), least=0.7)
def nc_pipes(run):
    port = run.free_port()
    caught(run, port, ("sh", "-c", f"nc.openbsd -l {HOST} {port} | dd bs=64k status=none"),
           ("sh", "-c", f"pv -q | nc.openbsd -N {HOST} {port}"))


@use("nc (traditional)", "300 MiB by `nc -q 0` to `nc -l -p`",
     ("nc.traditional:netcat-traditional",), least=0.8)
def nc_traditional(run):
    port = run.free_port()
    caught(run, port, ("nc.traditional", "-l", "-s", HOST, "-p", str(port)),
           ("nc.traditional", "-q", "0", HOST, str(port)))


def socat(run, *words):
    """Starts a server that forks a process for each connection: the client's word for it."""
    port = run.free_port()
    run.server("socat", f"TCP-LISTEN:{port},bind={HOST},reuseaddr,fork", *words, port=port)
    return f"TCP:{HOST}:{port}"


@use("socat, socat", "300 MiB to `EXEC:sha256sum` by pipes, and its answer", ("socat:socat",),
     least=0.7)
def socat_pipes(run):
    server = socat(run, "EXEC:sha256sum,pipes")
    run.asked("socat", "-t", "60", "-", server, stdin=run.file("sent", 300 << 20))


def echoed(run, word, size=200 << 20):
    """Sends a file through a program that socat runs, and receives it back, on two connections."""
    server, sent, got = socat(run, word), run.file("sent", size), f"{run.dir}/got"
    for _ in range(2):
        run.asked("socat", "-t", "20", "-", server, stdin=sent, stdout=got, got=got)


@use("socat, socat", "200 MiB there and back through `EXEC:cat`, by a socket pair",
     ("socat:socat",), least=0.7)
def socat_exec(run):
    echoed(run, "EXEC:cat")


@use("socat, socat", "200 MiB there and back through `EXEC:cat,nofork`, cat on the socket itself",
     ("socat:socat",))
def socat_nofork(run):
    echoed(run, "EXEC:cat,nofork")


@use("socat, socat", "8 files of 50 MiB, each from a forked server's `SYSTEM:cat`",
     ("socat:socat",))
def socat_fork(run):
    server = socat(run, f"SYSTEM:cat {run.file('sent', 50 << 20)}")
    got = f"{run.dir}/got"
    for _ in range(8):
        run.asked("socat", "-u", server, f"CREATE:{got}", got=got)


SENDALL_READER = """
import socket, sys, zlib
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
for _ in range(int(sys.argv[3])):
    connection, total, check = listener.accept()[0], 0, 0
    while piece := connection.recv(65536):
        total, check = total + len(piece), zlib.crc32(piece, check)
    connection.close()
    print(total, check)
"""
SENDALL_WRITER = """
import random, socket, sys
data = random.Random(1).randbytes(20_000_000)
for _ in range(int(sys.argv[3])):
    with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as connection:
        connection.sendall(data)
"""


@use("Python sockets", "one `sendall` of 20 MB on each of 30 connections, read 64 KiB at a time")
def sendall(run):
    port = run.free_port()
    words, sums = (HOST, str(port), "30"), f"{run.dir}/sums"
    run.both_ends(port, (sys.executable, "-c", SENDALL_READER, *words),
                  (sys.executable, "-c", SENDALL_WRITER, *words), stdout=sums)
    with open(sums) as f:
        run.result(f.read())


# --- copies of files ---

@use("OpenSSH, scp", "300 MiB to the server and back",
     ("sshd:openssh-server", "ssh:openssh-client"))
def ssh_scp(run):
    server, sent = Sshd(run), run.file("sent", 300 << 20)
    there, back = f"{run.dir}/there", f"{run.dir}/back"
    with run.timed():
        run.client("scp", *server.options, sent, f"{HOST}:{there}")
        run.client("scp", *server.options, f"{HOST}:{there}", back)
    run.result([sha256(there), sha256(back)])


@use("OpenSSH, ssh -L", "4 files of 64 MiB of nginx by curl through a forwarded port",
     ("sshd:openssh-server", "ssh:openssh-client", "nginx:nginx", "curl:curl"), least=0.5)
def ssh_forward(run):
    web, server, port = nginx(run, {"big": 64 << 20}), Sshd(run), run.free_port()
    run.server("ssh", *server.options, "-N", "-L", f"{HOST}:{port}:{HOST}:{web.port}", HOST,
               port=port)
    for _ in range(4):
        fetch(run, f"http://{HOST}:{port}/big")


@use("rsync daemon", "300 files and one of 200 MiB to it, differences of them, and all back",
     ("rsync:rsync",))
def rsync(run):
    port = run.free_port()
    here, there, back = f"{run.dir}/here", run.folder("there"), f"{run.dir}/back"
    tree_of_files(here, run.seed)
    blob(run, here, "big", 200 << 20)
    conf = run.write("rsyncd.conf", RSYNCD_CONF.format(dir=run.dir, uid=os.geteuid(),
                                                       gid=os.getegid()))
    run.server("rsync", "--daemon", "--no-detach", f"--config={conf}", f"--port={port}",
               f"--address={HOST}", port=port)
    url = f"rsync://{HOST}:{port}/there/"
    with run.timed():
        run.client("rsync", "-a", f"{here}/", url)
    with open(f"{here}/big", "r+b") as f:
        f.seek(20 << 20)
        f.write(b"another middle" * 1000)
    with run.timed():
        run.client("rsync", "-a", "--ignore-times", "--delete", f"{here}/", url)
        run.client("rsync", "-a", url, f"{back}/")
    run.result([tree_sum(there), tree_sum(back)])


@use("vsftpd, curl", "a file of 128 MiB from it, four times, and to it",
     ("vsftpd:vsftpd", "curl:curl"), root=True)
def vsftpd(run):
    port, low = run.free_port(), run.free_port()
    up = run.folder("ftp/up", "daemon")
    run.folder("empty")
    blob(run, f"{run.dir}/ftp", "big", 128 << 20)
    conf = run.write("vsftpd.conf", VSFTPD_CONF.format(
        host=HOST, port=port, dir=run.dir, low=low, high=low + 20, user="daemon"))
    run.server(shutil.which("vsftpd"), conf, port=port)
    for _ in range(4):
        fetch(run, f"ftp://{HOST}:{port}/big")
    run.asked("curl", "-sS", "--fail", "-T", f"{run.dir}/ftp/big", f"ftp://{HOST}:{port}/up/big",
              got=f"{up}/big")


@use("nginx, rclone", "300 files and one of 200 MiB by `rclone copy`, a Go program",
     ("nginx:nginx", "rclone:rclone"))
def rclone(run):
    web = nginx(run, more="autoindex on;")
    tree_of_files(f"{web.dir}/www", run.seed)
    blob(run, f"{web.dir}/www", "big", 200 << 20)
    with run.timed():
        run.client("rclone", "copy", "--config", f"{run.dir}/rclone.conf", "--cache-dir", run.dir,
                   "--http-url", f"http://{HOST}:{web.port}", ":http:", f"{run.dir}/got")
    run.result(tree_sum(f"{run.dir}/got"))


SMB_CONF = """
[global]
    server role = standalone server
    map to guest = Bad User
    guest account = root
    interfaces = lo
    bind interfaces only = yes
    disable netbios = yes
    load printers = no
    disable spoolss = yes
    log file = {dir}/smbd.log
    pid directory = {dir}/state
    lock directory = {dir}/state
    state directory = {dir}/state
    cache directory = {dir}/state
    private dir = {dir}/state
    ncalrpc dir = {dir}/state/ncalrpc
[there]
    path = {dir}/there
    guest ok = yes
    read only = no
"""


@use("Samba smbd, smbclient", "a file of 300 MiB and 40 of 1 MiB there and back",
     ("smbd:samba", "smbclient:smbclient"), root=True, least=0.3)
def samba(run):
    port = run.free_port()
    here, there, back, _ = (run.folder(name) for name in ("here", "there", "back", "state"))
    blob(run, here, "big", 300 << 20)
    for n in range(40):
        blob(run, here, f"small{n}", (1 << 20) + n)
    conf = run.write("smb.conf", SMB_CONF.format(dir=run.dir))
    run.server(shutil.which("smbd"), "-F", "-s", conf, "-p", str(port), port=port)
    for place, word in ((here, "mput"), (back, "mget")):
        with run.timed():
            run.client("smbclient", f"//{HOST}/there", "-s", conf, "-p", str(port), "-N",
                       "-c", f"prompt; lcd {place}; {word} *")
    run.result([tree_sum(there), tree_sum(back)])


# --- histories ---

@use("svnserve, svn", "import, checkout, commit and update of 300 files and one of 30 MiB",
     ("svnserve:subversion",), least=0.7)
def subversion(run):
    port = run.free_port()
    there, tree = f"{run.dir}/there", f"{run.dir}/tree"
    one, two = f"{run.dir}/one", f"{run.dir}/two"
    run.prepare("svnadmin", "create", there)
    run.write("there/conf/svnserve.conf", "[general]\nanon-access = write\n")
    tree_of_files(tree, run.seed)
    blob(run, tree, "big", 30 << 20)
    run.server("svnserve", "-d", "--foreground", "-r", there, "--listen-host", HOST,
               "--listen-port", str(port), port=port)

    def svn(*words):
        with run.timed():
            run.client("svn", "--non-interactive", "--config-dir", f"{run.dir}/svn", "-q", *words)
    url = f"svn://{HOST}:{port}"
    svn("import", "-m", "Files", tree, url)
    svn("checkout", url, one)
    svn("checkout", url, two)
    blob(run, one, "big", 20 << 20)
    svn("commit", "-m", "Another", one)
    svn("update", two)
    run.result([tree_sum(place, (".svn",)) for place in (one, two)])


@use("git daemon, git", "push, clone and pull of 300 files and one of 40 MiB by git://",
     ("git:git",))
def git_daemon(run):
    port = run.free_port()
    one, two = f"{run.dir}/one", f"{run.dir}/two"
    settings = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"}
    for name in ("AUTHOR", "COMMITTER"):
        settings |= {f"GIT_{name}_NAME": "Somebody", f"GIT_{name}_EMAIL": "somebody@example.org",
                     f"GIT_{name}_DATE": "2020-02-02T02:02:02Z"}

    def git(*words, act=run.client):
        act("git", "-c", "core.compression=0", "-C", run.dir, *words, env=settings)
    git("init", "-q", "--bare", "-b", "main", "there.git", act=run.prepare)
    git("init", "-q", "-b", "main", one, act=run.prepare)
    run.server("git", "daemon", "--reuseaddr", "--export-all", "--enable=receive-pack",
               f"--base-path={run.dir}", f"--listen={HOST}", f"--port={port}", port=port,
               env=settings)
    url = f"git://{HOST}:{port}/there.git"
    tree_of_files(f"{one}/files", run.seed)
    for size in (40 << 20, 20 << 20):
        blob(run, one, "big", size)
        git("-C", one, "add", "-A", act=run.prepare)
        git("-C", one, "commit", "-q", "-m", "Files", act=run.prepare)
        with run.timed():
            git("-C", one, "push", "-q", url, "main")
            git(*(("-C", two, "pull", "-q") if os.path.exists(two) else ("clone", "-q", url, two)))
        run.result(tree_sum(two, (".git",)))
    run.prepare("git", "-C", two, "fsck", "--full", env=settings)


@use("hg serve, hg", "clone, push and pull of 300 files and one of 40 MiB", ("hg:mercurial",),
     least=0.7)
def mercurial(run):
    port = run.free_port()
    there, one, two = (f"{run.dir}/{name}" for name in ("there", "one", "two"))
    settings = {"HGRCPATH": run.write("hgrc", "[ui]\nusername = Somebody\n"),
                "HGPLAIN": "1"}

    def hg(*words, act=run.client):
        act("hg", "-q", *words, env=settings)

    hg("init", there, act=run.prepare)
    tree_of_files(there, run.seed)
    blob(run, there, "big", 40 << 20)
    hg("-R", there, "commit", "-A", "-m", "Files", "-d", "0 0", act=run.prepare)
    run.server("hg", "serve", "-R", there, "-a", HOST, "-p", str(port), "--config",
               "web.push_ssl=no", "--config", "web.allow-push=*", port=port, env=settings)
    url = f"http://{HOST}:{port}"
    with run.timed():
        hg("clone", url, one)
        hg("clone", "--stream", url, two)
    blob(run, one, "big", 20 << 20)
    hg("-R", one, "commit", "-m", "Another", "-d", "0 0", act=run.prepare)
    with run.timed():
        hg("-R", one, "push", url)
        hg("-R", two, "pull", "-u", url)
    run.result([tree_sum(place, (".hg",)) for place in (one, two)])


# --- disks ---

@use("nbdkit, nbdcopy", "a disk of 300 MiB in memory filled and read",
     ("nbdkit:nbdkit", "nbdcopy:libnbd-bin"), least=0.7)
def nbdcopy(run):
    port, sent, got = run.free_port(), run.file("sent", 300 << 20), f"{run.dir}/got"
    run.server("nbdkit", "-f", "-i", HOST, "-p", str(port), "memory", "300M", port=port)
    url = f"nbd://{HOST}:{port}"
    with run.timed():
        run.client("nbdcopy", sent, url)
    run.asked("nbdcopy", url, got, got=got)


@use("nbdkit, qemu-img", "a disk of 300 MiB in a file read by `convert` and by `compare`",
     ("nbdkit:nbdkit", "qemu-img:qemu-utils"))
def qemu_img(run):
    port, sent, got = run.free_port(), run.file("sent", 300 << 20), f"{run.dir}/got"
    run.server("nbdkit", "-f", "-i", HOST, "-p", str(port), "file", sent, port=port)
    url = f"nbd://{HOST}:{port}"
    run.asked("qemu-img", "convert", "-f", "raw", "-O", "raw", url, got, got=got)
    run.asked("qemu-img", "compare", "-f", "raw", "-F", "raw", url, got)


# --- screens, sound and films ---

@use("Xvfb, x11perf, xwd", "500 images of 500x500 drawn and 500 read, then 20 screens read",
     ("Xvfb:xvfb", "xwd:x11-apps", "x11perf:x11-apps"), least=0.7)
def x11(run):
    port = run.free_port()
    run.server("Xvfb", f":{port - 6000}", "-listen", "tcp", "-nolisten", "unix", "-nolisten",
               "local", "-ac", "-nolock", "-retro", "-noreset", "-screen", "0", "1280x1024x24",
               port=port)
    display = ("-display", f"{HOST}:{port - 6000}")
    got = f"{run.dir}/got"
    with run.timed():
        run.client("x11perf", *display, "-repeat", "1", "-reps", "500", "-putimage500",
                   "-getimage500", "-copywinwin10")
    for _ in range(20):
        run.asked("xwd", *display, "-root", "-silent", "-out", got, got=got)


@use("GStreamer", "300 MiB by tcpclientsink to tcpserversrc",
     ("gst-launch-1.0:gstreamer1.0-tools",
      "/usr/share/doc/gstreamer1.0-plugins-base:gstreamer1.0-plugins-base"), least=0.7)
def gstreamer(run):
    port, sent, got = run.free_port(), run.file("sent", 300 << 20), f"{run.dir}/got"
    env = {"GST_REGISTRY": f"{run.dir}/registry"}
    # It makes the registry: neither end is timed over it.
    run.prepare("gst-inspect-1.0", "tcpserversrc", env=env)
    launch, where = ("gst-launch-1.0", "-q"), (f"host={HOST}", f"port={port}")
    run.both_ends(port, (*launch, "tcpserversrc", *where, "!", "filesink", f"location={got}"),
                  (*launch, "filesrc", f"location={sent}", "blocksize=65536", "!",
                   "tcpclientsink", *where), env=env)
    run.result(sha256(got))


@use("FFmpeg", "300 raw frames of 1280x720 by tcp://", ("ffmpeg:ffmpeg",), least=0.7)
def ffmpeg(run):
    port, sent = run.free_port(), run.file("sent", 300 * 1280 * 720 * 3 // 2)
    raw = ("ffmpeg", "-nostdin", "-f", "rawvideo", "-pixel_format", "yuv420p",
           "-video_size", "1280x720", "-i")
    url, sums = f"tcp://{HOST}:{port}", f"{run.dir}/sums"
    run.both_ends(port, (*raw, f"{url}?listen=1", "-c", "copy", "-f", "framemd5", sums),
                  (*raw, sent, "-c", "copy", "-f", "rawvideo", url))
    run.result(sha256(sums))


# --- logs and letters ---

RSYSLOG_CONF = """
global(workDirectory="{dir}")
module(load="imtcp")
input(type="imtcp" address="{host}" port="{port}")
template(name="plain" type="string" string="%msg:::drop-last-lf%\\n")
action(type="omfile" file="{dir}/log" template="plain")
"""
SYSLOG_SENDER = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as connection:
    for n in range(int(sys.argv[4])):
        connection.sendall(b"<13>Jan  1 00:00:00 here %s: line %d\\n" % (sys.argv[3].encode(), n))
"""


def lines(path):
    """Counts the lines of a file that may not be there yet."""
    if not os.path.exists(path):
        return 0
    with open(path, "rb") as f:
        return sum(piece.count(b"\n") for piece in iter(lambda: f.read(1 << 20), b""))


@use("rsyslog", "40,000 lines by `logger --tcp` and twice 40,000 by Python to imtcp",
     ("rsyslogd:rsyslog", "logger:bsdutils"), least=0.5)
def rsyslog(run):
    port, count = run.free_port(), 40_000
    conf = run.write("rsyslog.conf", RSYSLOG_CONF.format(dir=run.dir, host=HOST, port=port))
    run.server(shutil.which("rsyslogd"), "-n", "-f", conf, "-i", f"{run.dir}/pid", port=port)
    text = run.write("text", "".join(f"{n} of a file of lines\n" for n in range(count)))
    with run.timed():
        senders = [run.background(sys.executable, "-c", SYSLOG_SENDER, HOST, str(port), name,
                                  str(count)) for name in ("one", "two")]
        run.client("logger", "--tcp", "--server", HOST, "--port", str(port), "-t", "file",
                   "--rfc3164", "-f", text)
        for sender in senders:
            run.ended(sender)
        common.until(lambda: lines(f"{run.dir}/log") >= 3 * count, "lines are missing", 30)
    with open(f"{run.dir}/log", "rb") as f:
        run.result(sorted(f))


def bodies(place):
    """Returns the number and a checksum of what smtp-sink wrote, without the heads of letters."""
    sums = []
    for name in os.listdir(place):
        with open(f"{place}/{name}", "rb") as f:
            sums.append(hashlib.sha256(f.read().partition(b"\n\n")[2]).hexdigest())
    return [len(sums), hashlib.sha256("".join(sorted(sums)).encode()).hexdigest()]


@use("Postfix smtp-source, smtp-sink", "4,000 letters of 100 KB in 8 sessions",
     ("smtp-source:postfix", "smtp-sink:postfix"), root=True, least=0.7)
def smtp(run):
    port, place = run.free_port(), run.folder("mail")
    run.server("smtp-sink", "-u", "root", "-d", f"{place}/%M.", f"inet:{HOST}:{port}", "100",
               port=port)
    with run.timed():
        run.client("smtp-source", "-d", "-s", "8", "-m", "4000", "-l", "100000",
                   f"inet:{HOST}:{port}")
    run.result(bodies(place))


DOVECOT_CONF = """
protocols = imap
listen = {host}
base_dir = {dir}/dovecot
state_dir = {dir}/dovecot
log_path = {dir}/log
ssl = no
disable_plaintext_auth = no
import_environment = TZ CORE_OUTOFMEM CORE_ERROR LD_PRELOAD SLUICE_CONFIG SLUICE_REPORT
mail_location = maildir:{dir}/mail/%u
first_valid_uid = 0
passdb {{
  driver = static
  args = nopassword=y
}}
userdb {{
  driver = static
  args = uid=mail gid=mail home={dir}/mail/%u
}}
service imap-login {{
  inet_listener imap {{
    port = {port}
  }}
  inet_listener imaps {{
    port = 0
  }}
}}
"""
IMAP_CLIENT = """
import hashlib, imaplib, random, sys
imap, made = imaplib.IMAP4(sys.argv[1], int(sys.argv[2])), random.Random(1)
imap.login("somebody", "word")
for n in range(150):
    text = made.randbytes(100_000).hex()
    body = "\\r\\n".join(text[at:at + 76] for at in range(0, len(text), 76))
    imap.append("INBOX", None, None, f"Subject: {n}\\r\\n\\r\\n{body}\\r\\n".encode())
print(imap.select("INBOX"))
for n in range(150):
    answer, parts = imap.fetch(str(n + 1), "(RFC822)")
    print(answer, hashlib.sha256(parts[0][1]).hexdigest())
imap.logout()
"""


@use("Dovecot, imaplib", "150 letters of 200 KB appended and fetched",
     ("/usr/lib/dovecot/imap:dovecot-imapd", "dovecot:dovecot-core"), root=True)
def dovecot(run):
    port = run.free_port()
    run.folder("mail", "mail")
    conf = run.write("dovecot.conf", DOVECOT_CONF.format(host=HOST, port=port, dir=run.dir))
    run.server("dovecot", "-F", "-c", conf, port=port)
    run.asked(sys.executable, "-c", IMAP_CLIENT, HOST, str(port))


# --- work for others ---

PSOCK = """
library(parallel)
cluster <- makePSOCKcluster(2, port = {port})
parts <- lapply(1:2, function(n) as.numeric(seq_len(2e6)) * n)
for (round in 1:4) parts <- clusterApply(cluster, parts, function(x) x + 1)
cat(sprintf("%.0f %.0f\\n", sum(parts[[1]]), sum(parts[[2]])))
squares <- parSapply(cluster, 1:2000, function(x) x * x)
cat(sum(squares), "\\n")
stopCluster(cluster)
"""


@use("R, parallel", "a PSOCK cluster of 2: 8 vectors of 16 MB there and back",
     ("Rscript:r-base-core",), least=0.7)
def r_psock(run):
    run.asked("Rscript", "--vanilla", run.write("psock.R", PSOCK.format(port=run.free_port())))


@use("distcc", "12 C files of up to 400 KB compiled, two at once", ("distcc:distcc", "gcc:gcc"),
     root=True)
def distcc(run):
    port, made, state = run.free_port(), run.folder("made", "nobody"), run.folder("distcc")
    run.server("distccd", "--no-detach", "--daemon", "--listen", HOST, "-p", str(port), "--allow",
               HOST, "--jobs", "2", "--user", "nobody", "--enable-tcp-insecure", port=port,
               env={"TMPDIR": made})
    for n in range(12):
        numbers = ",".join(str(n * k) for k in range(60_000))
        run.write(f"a{n}.c", f"int a{n}(int k) {{ static const int t[] = {{{numbers}}};"
                             " return t[k]; }\n")
    run.write("Makefile", "all: " + " ".join(f"a{n}.o" for n in range(12)) +
              "\n%.o: %.c\n\tdistcc gcc -O1 -c -o $@ $<\n")
    with run.timed():
        run.client("make", "-s", "-j2", "-C", run.dir,
                   env={"DISTCC_HOSTS": f"{HOST}:{port}", "DISTCC_DIR": state,
                        "DISTCC_FALLBACK": "0", "TMPDIR": run.dir})
    run.result([sha256(f"{run.dir}/a{n}.o") for n in range(12)])


# --- measurements ---

@use("iperf 2", "4 GiB in one direction", ("iperf:iperf",))
def iperf(run):
    port = run.free_port()
    text = run.both_ends(port, ("iperf", "-s", "-B", HOST, "-p", str(port), "-P", "1"),
                         ("iperf", "-c", HOST, "-p", str(port), "-n", "4G", "-y", "C"))
    run.result(text.split(",")[7])


@use("iperf3", "4 GiB each way", ("iperf3:iperf3",), least=0.7)
def iperf3(run):
    for way in ((), ("-R",)):
        port = run.free_port()
        text = run.both_ends(port, ("iperf3", "-s", "-1", "-B", HOST, "-p", str(port)),
                             ("iperf3", "-c", HOST, "-p", str(port), "-n", "4G", "-J", *way))
        # A little of the end is still under way when it tells its server to stop.
        end = json.loads(text)["end"]
        run.result([end["sum_sent"]["bytes"] >= 4 << 30,
                    end["sum_received"]["bytes"] > 0.99 * (4 << 30)])


@use("qperf", "tcp_bw with messages of 64 KiB for 2 s: time of 4 GB", ("qperf:qperf",), least=0.8)
def qperf(run):
    port, other = run.free_port(), run.free_port()
    run.server("qperf", "--listen_port", str(port), port=port)
    text = run.client("qperf", HOST, "--listen_port", str(port), "--ip_port", str(other),
                      "--time", "2", "--unify_units", "--verbose_more_stat", "tcp_bw")
    bandwidth, sent, received = (float(re.search(rf"{name} += +([\d.]+)", text).group(1))
                                 for name in ("bw", "send_bytes", "recv_bytes"))
    run.seconds += 4e9 / bandwidth
    # What was under way when its time was up is not received.
    run.result([sent > 0, 0.95 * sent < received <= sent + 65536])


@use("sockperf", "ping-pong of checked messages of 16 KB for 2 s: time of 100,000 of them",
     ("sockperf:sockperf",), least=0.8)
def sockperf(run):
    port = run.free_port()
    words = ("--tcp", "-i", HOST, "-p", str(port))
    run.server("sockperf", "server", *words, port=port)
    # With small ones it may be faster than the most it can note, 600,000 a second, and fails then.
    text = run.client("sockperf", "ping-pong", *words, "-t", "2", "-m", "16000",
                      "--data-integrity")
    run.seconds += float(re.search(r"Latency is ([\d.]+) usec", text).group(1)) / 1e6 * 100_000
    run.result(re.search(r"# dropped messages.*", text).group(0))


@use("fio, net engine", "4 GiB from one job to another", ("fio:fio",), least=0.7)
def fio(run):
    port = run.free_port()
    words = ("fio", "--ioengine=net", "--protocol=tcp", f"--port={port}", "--bs=64k",
             "--output-format=json", "--name=job")
    # It counts less than it reads where it reads less than a block, so that it reads to the end.
    text = run.both_ends(port, (*words, "--listen", "--rw=read", "--size=64g"),
                         (*words, f"--hostname={HOST}", "--rw=write", "--size=4g"))
    job = json.loads(text)["jobs"][0]
    run.result([job["error"], job["write"]["io_bytes"]])
