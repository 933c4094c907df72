"""One long stream or a few: iperf3, ssh with scp and sftp."""

import json
import os
import random
import shutil
import subprocess
import threading

import common
from common import Failure
from .run import CLIENT_LIMIT, same


def iperf3(run, *flags):
    port = run.free_port()
    child = common.start(["iperf3", "-s", "-1", "-B", run.address("server"), "-p", str(port)], env=run.env["server"],
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    run.serve(child, lambda: common.wait(child, 20))
    common.wait_listening(port, child)
    text = run.client("iperf3", "-c", run.address("server"), "-p", str(port), "-t", str(run.scaled(4, 2) * run.times), "-J", *flags)
    answer = json.loads(text)
    if "error" in answer:
        raise Failure(f"iperf3: {answer['error']}")
    for key in ("sum_received", "sum_received_bidir_reverse"):
        if key in answer["end"]:
            got = answer["end"][key]["bytes"]
            if got <= 0:
                raise Failure(f"iperf3: {key} is {got}")
            run.payload += got
    if "--bidir" in flags and "sum_received_bidir_reverse" not in answer["end"]:
        raise Failure("iperf3 --bidir reported one direction")


def iperf3_p1(run):
    iperf3(run)


def iperf3_p4(run):
    iperf3(run, "-P", "4")


def iperf3_reverse(run):
    iperf3(run, "-R")


def iperf3_bidir(run):
    iperf3(run, "--bidir")


SSHD_CONF = """
HostKey {dir}/host
AuthorizedKeysFile {dir}/client.pub
PidFile none
StrictModes no
UsePAM no
PermitRootLogin yes
Subsystem sftp internal-sftp
"""


class Sshd:
    """A server, and the words that a client of it needs before its own."""

    def __init__(self, run):
        port, where = run.free_port(), run.address("server")
        # Where it is root it wants this, which services have made at boot.
        made = os.geteuid() == 0 and not os.path.isdir("/run/sshd")
        if made:
            os.mkdir("/run/sshd", 0o755)
        for key in ("host", "client"):
            common.finished(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{run.dir}/{key}"], 20)
        with open(f"{run.dir}/sshd.conf", "w") as f:
            f.write(SSHD_CONF.format(dir=run.dir))
        child = common.start([shutil.which("sshd"), "-D", "-e", "-f", f"{run.dir}/sshd.conf", "-o", f"ListenAddress={where}:{port}"],
                             env=run.env["server"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def stop():
            common.end(child)
            if made:
                os.rmdir("/run/sshd")
        run.serve(child, stop)
        common.wait_listening(port, child)
        self.host = where
        self.options = ["-F", "none", "-i", f"{run.dir}/client", "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes",
                        "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR",
                        "-o", f"Port={port}"]
        self.blob = random.Random(run.seed).randbytes(32 << 20)
        with open(f"{run.dir}/blob", "wb") as f:
            f.write(self.blob)


def ssh(run):
    """A command with a large input and output at once, and files there and back by scp and sftp."""
    server = Sshd(run)
    options, where, blob = server.options, server.host, server.blob
    if run.client("ssh", *options, where, "cat", data=blob) != blob:
        raise Failure("ssh: other bytes came back than were sent")
    run.client("scp", *options, f"{run.dir}/blob", f"{where}:{run.dir}/there")
    run.client("scp", *options, f"{where}:{run.dir}/there", f"{run.dir}/back")
    same(f"{run.dir}/blob", f"{run.dir}/there", "scp to the server")
    same(f"{run.dir}/blob", f"{run.dir}/back", "scp from the server")
    run.client("sftp", *options, "-b", "-", where,
               data=f"put {run.dir}/blob {run.dir}/there2\nget {run.dir}/there2 {run.dir}/back2\n")
    same(f"{run.dir}/blob", f"{run.dir}/there2", "sftp to the server")
    same(f"{run.dir}/blob", f"{run.dir}/back2", "sftp from the server")
    run.payload += 6 * len(blob)


def ssh_shared(run):
    """Several sessions at once over the connection of one master, whom clients send their descriptors."""
    server = Sshd(run)
    control = ["-S", f"{run.dir}/control"]
    master = run.background("ssh", *server.options, *control, "-M", "-N", server.host)
    common.until(lambda: run.client("ssh", *server.options, *control, "-O", "check", server.host, status=None) is not None,
                 "no master of ssh", 20)
    kids = [common.start(["ssh", *server.options, *control, server.host, "cat"], env=run.env["client"], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, stdin=subprocess.PIPE) for _ in range(3)]
    answers = [None] * len(kids)

    def talk(i):
        answers[i] = common.communicate(kids[i], CLIENT_LIMIT, server.blob)[0]
    threads = [threading.Thread(target=talk, args=(i,)) for i in range(len(kids))]
    for t in threads:
        t.start()
    run.client("scp", *server.options, "-o", f"ControlPath={run.dir}/control", f"{run.dir}/blob", f"{server.host}:{run.dir}/there")
    for t in threads:
        t.join()
    if any(a != server.blob for a in answers):
        raise Failure("ssh: other bytes came back over a shared connection than were sent")
    same(f"{run.dir}/blob", f"{run.dir}/there", "scp over a shared connection")
    run.client("ssh", *server.options, *control, "-O", "exit", server.host)
    common.communicate(master, CLIENT_LIMIT)
    run.payload += 7 * len(server.blob)
