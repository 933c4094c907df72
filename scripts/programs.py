#!/usr/bin/env python3
"""Real programs, unmodified: do they work plain, preloaded on both sides, and on one side only?

    scripts/programs.py                 every program in every mode
    scripts/programs.py --sample SEED   `both` and one more mode each, smaller sizes
    scripts/programs.py --filter nginx  tests whose "name / mode" contains the text
    scripts/programs.py --list
    scripts/guest/run -- scripts/programs.py --hosts    servers in hb, clients in ha, haproxy between ha and ha

Modes: plain, both, eager (both, SLUICE_UPGRADE=eager), server, client. Files are compared by
sha256. What is preloaded must have reported connections, and in `eager` accelerated some. Where a test
moves much over few connections, `both` and `eager` also demand that over 95 % of the bytes went over the
link, by the libraries' own counters at both ends and by the byte counter of the loopback device; `plain`
demands that the loopback device saw them all; one side alone must stay on TCP and say why. Between two
hosts there is no `eager`, what TCP moved is counted by its own sockets in ha, and the devices must have
sent the rest, where they count. Servers whose workers are replaced under load are also watched plain,
beside each other mode, and may end no more connections. A program that does not end in time is shown
with gdb. Runs in a network namespace of its own where allowed. Last lines: what was skipped, if
anything, and `N passed, N failed`.
"""

import argparse
import os
import random
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import common    # noqa: E402
import hosts     # noqa: E402
from common import Failure, Hang    # noqa: E402
from programs import files, proxies, runtimes, stores, streams, web    # noqa: E402
from programs.run import Run, Skip    # noqa: E402

MODES = ("plain", "both", "eager", "server", "client")
TESTS = [web.nginx_curl, web.nginx_curl_dropped, web.nginx_wrk, web.nginx_wrk_close, web.nginx_ab, web.nginx_reload,
         web.nginx_upgrade, stores.redis_benchmark, stores.redis_benchmark_long, stores.redis_cli, stores.memcached, stores.pgbench,
         stores.pgbench_reconnect, streams.iperf3_p1, streams.iperf3_p4, streams.iperf3_reverse, streams.iperf3_bidir, streams.ssh, streams.ssh_shared,
         runtimes.python_http, runtimes.node_http, runtimes.node_cluster, runtimes.java_http, proxies.haproxy_http,
         proxies.haproxy_tcp, proxies.haproxy_tcp_splice, proxies.tinyproxy_curl, proxies.apt_update, files.rsync, files.ftp, files.git_http]
# On TCP, by choice: haproxy moves bytes from socket to socket inside the kernel where it may; sshd begins anew by exec with the
# connection at descriptors 0 and 1; node's first process accepts and sends the descriptor to another; so does vsftpd with its
# connections for data, and the other, in its sandbox, can report none.
BY_TCP = {proxies.haproxy_tcp_splice, streams.ssh, streams.ssh_shared, runtimes.node_cluster, files.ftp}


def attempt(test, mode, args):
    """What went wrong or None, and what else is to be said; Skip if it cannot be tried here."""
    run = Run(mode, args)
    try:
        test(run)
        if test in BY_TCP:
            run.by_tcp, run.payload = True, 0
        run.finish()
        return None, run.notes
    except Hang as e:
        return common.hung(e), []
    except Failure as e:
        return str(e), []
    finally:
        run.rescue()
        subprocess.run(["rm", "-rf", run.dir], check=False)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--sample", type=int, metavar="SEED")
    ap.add_argument("--filter", "-k", default="")
    ap.add_argument("--seed", type=int, default=1, help="of the data")
    ap.add_argument("--list", action="store_true")
    ap.add_argument("--hosts", action="store_true", help="between the two hosts of scripts/guest/run")
    ap.add_argument("--expect", choices=("rdma", "tcp"), default="rdma", help="what joins the two hosts")
    ap.add_argument("--lib", default=common.LIB, help="the library")
    args = ap.parse_args()

    # A guest has little memory.
    args.size = 0.3 if args.hosts else 1.0
    modes = [m for m in MODES if not (args.hosts and m == "eager")]
    jobs = [(t, m) for t in TESTS for m in modes]
    if args.sample is not None:
        args.seed, args.size = args.sample, 0.3
        rng = random.Random(args.seed)
        jobs = [(t, m) for t in TESTS for m in ("both", rng.choice([x for x in modes if x != "both"]))]
    jobs = [(t, m) for t, m in jobs if args.filter in f"{t.__name__} / {m}"]
    if args.list:
        print("\n".join(f"{t.__name__} / {m}" for t, m in jobs))
        return 0
    if not jobs:
        sys.exit("nothing matches")
    args.lib = os.path.abspath(args.lib)
    common.need_file(args.lib, "make build")
    common.need_tools("nginx", "curl", "wrk", "ab", "redis-server", "redis-benchmark", "redis-cli", "memcached",
                      "iperf3", "haproxy", "pgbench", "psql", "sshd", "ssh", "scp", "sftp", "rsync", "vsftpd", "tinyproxy", "apache2", "git",
                      "node", "java", "javac")
    common.adopt_orphans()
    if args.hosts:
        hosts.need_guest()
    elif not common.private_network():
        print("no network namespace of our own: other programs' traffic on loopback is counted as ours")
    print(f"seed {args.seed}, {len(jobs)} tests", flush=True)
    passed = failed = 0
    skipped = []
    for test, mode in jobs:
        begin = time.monotonic()
        try:
            wrong, notes = attempt(test, mode, args)
        except Skip as e:
            print(f"skipped {test.__name__} / {mode}: {e}", flush=True)
            skipped.append(f"{test.__name__} / {mode}")
            continue
        took = time.monotonic() - begin
        if wrong is None:
            passed += 1
            more = f": {', '.join(notes)}" if notes else ""
            print(f"ok      {test.__name__} / {mode}  ({took:.1f} s){more}", flush=True)
        else:
            failed += 1
            print(f"FAILED  {test.__name__} / {mode}  ({took:.1f} s): {wrong}", flush=True)
    if skipped:
        print(f"{len(skipped)} skipped: {', '.join(skipped)}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
