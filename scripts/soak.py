#!/usr/bin/env python3
"""Endurance: churn, crowds, kills and random demotions, every byte checked.

    scripts/soak.py                  churn, many, idle, kills, demotions at full length
    scripts/soak.py --quick          the same, short
    scripts/soak.py kills --seed 7   one of them
    scripts/soak.py stress --gib 8   random demotion from both ends over gigabytes
    scripts/soak.py --plain          the same programs without the library (what TCP does)

churn      10,000 connections made, used and closed in every way
many       1,000 connections at once, all accelerated, all used again afterwards
idle       1,000 connections that rest: what they hold, and what they cost; all used again afterwards
kills      200 times SIGKILL to one end at a random moment; the other must see a prefix of the
           stream, then the end or ECONNRESET, and lose nothing of its own
demotions  1,000 demotions at random moments (build with the feature `fault`). On a machine under load the
           short connections of a pair of processes may all be over before their ends have met: such
           pairs are counted, and no more than half of all may be so. `stress` has longer ones, and
           allows no such pair

A seed makes the same run of a part, whether others run before it or not.
Before and after: descriptors, memory files, threads, processes, sockets. Both ends are
benches/soak.c. Last line: `N passed, N failed`.
"""

import argparse
import os
import random
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import common    # noqa: E402
from common import Failure, Hang    # noqa: E402
from peers import HANG, NEVER, STYLES, WAITING, Peer, Stage, check_cut, no_growth    # noqa: E402



class Memory:
    """What a process has of its own, and the pages of the memory it shares with peers, in bytes."""

    def __init__(self, pid):
        self.private = self.shared = 0
        with open(f"/proc/{pid}/smaps_rollup") as f:
            self.private = sum(int(line.split()[1]) << 10 for line in f if line.startswith(("Anonymous:", "Swap:")))
        with open(f"/proc/{pid}/maps") as f:
            arenas = [line.split()[0] for line in f if "memfd:sluice" in line]
        try:
            # Also pages that this process has not touched.
            self.shared = sum(os.stat(f"/proc/{pid}/map_files/{place}").st_blocks * 512 for place in arenas)
        except PermissionError:
            with open(f"/proc/{pid}/smaps") as f:
                place = None
                for line in f:
                    place = line.split()[0] if line[0] in "0123456789abcdef" else place
                    if line.startswith("Rss:") and place in arenas:
                        self.shared += int(line.split()[1]) << 10


class Work:
    """What a process has done so far: CPU time in seconds, sleeps it went into."""

    def __init__(self, pid):
        self.seconds = self.sleeps = 0
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/schedstat") as f:
                self.seconds += int(f.read().split()[0]) / 1e9
            with open(f"/proc/{pid}/task/{task}/status") as f:
                self.sleeps += sum(int(line.split()[1]) for line in f if line.startswith("voluntary_ctxt"))


class Soak(Stage):
    def __init__(self, args):
        super().__init__(common.workplace("sluice-soak-"), args.plain)
        self.quick, self.seed = args.quick, args.seed
        self.gib = args.gib
        self.rng = None

    def run(self, part):
        """One of the parts, by draws of its own: they do not depend on what ran before."""
        self.rng = random.Random(f"{self.seed} {part}")
        self.next_seed = self.seed * 1_000_000
        return getattr(self, part)()

    def pick(self, full, quick):
        return quick if self.quick else full

    def hold(self, server, client, count, size):
        """So many connections at once, each halfway through its streams; the first one's seed."""
        seed = self.seeds(count)
        client.say(f"go {server.port} {seed} {count} {size} {size} 0 1")
        client.wait_for("started", 240)
        client.wait_for("holding")
        return seed

    def let_go(self, server, client, seed, count, size):
        """The other half of them."""
        client.say("")
        self.complete(server, client, seed, count, (size, size), 240)

    # --- the parts ---

    def churn(self):
        total, made = self.pick(10_000, 900), 0
        for n, waiting in enumerate(WAITING):
            upgrade = {"SLUICE_UPGRADE": "eager"} if n % 2 == 0 else {}
            server, client = Peer(self, "server", waiting, upgrade), Peer(self, "client", waiting, upgrade)
            self.warm(server, client)
            before = None
            part = total // len(WAITING) + (total % len(WAITING) if n == 0 else 0)
            done = 0
            while done < part:
                count = min(self.rng.choice((1, 1, 4, 10)), part - done)
                most = self.rng.choice((1, 100, 2000, 2000, 100_000, 400_000))
                self.exchange(server, client, count, self.rng.randint(1, most), self.rng.randint(1, most),
                              self.rng.randrange(STYLES))
                done += count
                # From here on pools are warm: nothing may grow any more.
                if before is None and done >= part // 5:
                    before = server.footprint(), client.footprint()
            for peer, old in zip((server, client), before):
                no_growth(f"{peer.role} after {done} connections ({waiting})", peer, old)
            client.stop()
            server.stop()
            self.accelerated(server, client, 1)
            made += done
        return f"{made} connections made, used and closed"

    def many(self):
        count = self.pick(1000, 200)
        size = 2 << 20
        server, client = Peer(self, "server", "lt"), Peer(self, "client", "et")
        # A first client, that what the library makes once is there already.
        first = Peer(self, "client", "lt")
        self.warm(server, first)
        first.stop()
        before = server.footprint()
        seed = self.hold(server, client, count, size)
        words = ""
        if not self.plain:
            for peer in (server, client):
                counters = common.stat_counters([peer.child.pid])
                if counters.accelerated < count:
                    raise Failure(f"{peer.role}: `sluice stat` says {counters}")
            words = f", memory file mappings {len(server.footprint().maps)}, threads {server.footprint().threads}"
        held = len(server.footprint().fds) - len(before.fds)
        # One link: two descriptors of the library's for it and for each waiter, and some to spare.
        if held > count + 16:
            raise Failure(f"the server holds {held} descriptors for {count} connections")
        self.let_go(server, client, seed, count, size)
        client.stop()
        no_growth("server after its client ended", server, before)
        server.stop()
        self.accelerated(server, client, count)
        return f"{count} connections at once, {held} descriptors for them{words}"

    def idle(self):
        """Each connection has moved 1 MiB each way when it rests."""
        count, watch = self.pick(1000, 100), self.pick(10, 3)
        size = 2 << 20
        own, peak = {}, 0       # bytes a connection by role: of the program itself
        for plain in (True, False):
            lib = {"SLUICE_UPGRADE": "off"} if plain else {}
            server, client, first = (Peer(self, role, "et" if role == "client" else "lt", lib)
                                     for role in ("server", "client", "client"))
            self.warm(server, first)
            first.stop()
            pair = {"server": server, "client": client}
            before = {role: Memory(p.child.pid) for role, p in pair.items()}
            seed = self.hold(server, client, count, size)
            if not plain and not self.plain:
                peak = Memory(server.child.pid).shared
                for peer in pair.values():
                    counters = common.stat_counters([peer.child.pid])
                    if counters.accelerated < count:
                        raise Failure(f"{peer.role}: `sluice stat` says {counters}")
            time.sleep(1)
            after = {role: Memory(p.child.pid) for role, p in pair.items()}
            grown = {role: (after[role].private - before[role].private) / count for role in pair}
            if plain:
                own = grown
            else:
                rings = after["server"].shared / count
                held = {role: grown[role] - own[role] + rings for role in pair}
                if max(held.values()) > 8192:
                    raise Failure(f"bytes held for each of {count} connections: {held}, {rings:.0f} of them shared")
                begin = {role: Work(p.child.pid) for role, p in pair.items()}
                time.sleep(watch)
                end = {role: Work(p.child.pid) for role, p in pair.items()}
                share = {role: (end[role].seconds - begin[role].seconds) / watch for role in pair}
                sleeps = {role: end[role].sleeps - begin[role].sleeps for role in pair}
                if max(share.values()) >= 0.005:
                    raise Failure(f"shares of a CPU over {watch} s of rest: {share}")
                # Nothing is to be done, so nobody wakes up.
                if max(sleeps.values()) > 3:
                    raise Failure(f"went to sleep so often in {watch} s of rest: {sleeps}")
            self.let_go(server, client, seed, count, size)
            client.stop()
            server.stop()
        self.accelerated(server, client, count)
        return (f"{count} connections hold {max(held.values()):.0f} bytes each, {rings:.0f} of them shared"
                f" ({peak / count:.0f} while busy); over {watch} s {max(share.values()):.4%} of a CPU,"
                f" {max(sleeps.values())} sleeps")

    def kills(self):
        total = self.pick(200, 24)
        ends = {"eof": 0, "reset": 0}
        # A survivor lives through a batch, so that what a dead peer leaves behind would add up.
        batch = 25 if total > 25 else 4
        for n in range(0, total, batch):
            waiting, victim = self.rng.choice(WAITING), ("client", "server")[n // batch % 2]
            upgrade = {"SLUICE_UPGRADE": "eager"} if self.rng.random() < 0.5 else {}
            survivor = Peer(self, {"client": "server", "server": "client"}[victim], waiting, upgrade)
            before = None
            for i in range(min(batch, total - n)):
                peer = Peer(self, victim, self.rng.choice(WAITING), upgrade)
                server, client = (survivor, peer) if victim == "client" else (peer, survivor)
                # Two that end in order, so that the survivor's pools are warm before the count starts.
                if i == 0:
                    self.warm(server, client)
                    before = survivor.footprint()
                count = self.rng.choice((1, 1, 3))
                client.go(server.port, self.seeds(count), count, 0, 0, 0)
                time.sleep(self.rng.random() * self.rng.choice((0.001, 0.01, 0.08)))    # the random moment
                peer.kill()
                if victim == "client":
                    survivor.settle(HANG)
                else:
                    survivor.wait_for("done")
                seen = survivor.take_ended()
                if victim == "server" and len(seen) != count:
                    raise Failure(f"{len(seen)} of {count} connections told their end")
                told = peer.entries()
                for seed, end, rx, tx in seen:
                    check_cut(seed, end, rx, tx, told.get(seed, NEVER))
                    ends[end] += 1
            no_growth(f"{survivor.role} after {min(batch, total - n)} peers were killed ({waiting})", survivor, before)
            survivor.stop()
            if not self.plain:
                share = common.read_report(survivor.report)
                if share.accelerated == 0:
                    raise Failure(f"nothing was accelerated: {share}")
        if not ends["eof"] + ends["reset"]:
            raise Failure("no survivor saw an end")
        return f"{total} kills, survivors saw {ends['reset']} resets and {ends['eof']} ends of file"

    def demotions(self):
        wanted, seen, rounds, most = self.pick(1000, 100), 0, 0, self.pick(400, 60)
        moved = missed = 0
        while seen < wanted:
            if rounds == most:
                raise Failure(f"{seen} demotions by {most} pairs, {wanted} wanted; {missed} accelerated nothing")
            rounds += 1
            client, server, bytes_ = self.demoting(commands=4, count=4, size=3_000_000)
            seen += client.demotions
            moved += bytes_
            missed += not_accelerated(client, server)
            if self.plain:
                return "not counted without the library"
            if missed > most // 2:
                break
        if missed > rounds // 2:
            raise Failure(f"{missed} of {rounds} pairs accelerated nothing, the last one so: {client}; {server}")
        return f"{seen} demotions in {moved / 1e9:.2f} GB, {missed} of {rounds} pairs accelerated nothing"

    def stress(self):
        moved, seen, link, rounds = 0, 0, 0, 0
        while moved < self.gib << 30:
            rounds += 1
            client, server, bytes_ = self.demoting(commands=2, count=4, size=32 << 20)
            if not_accelerated(client, server) and not self.plain:
                raise Failure(f"nothing was accelerated: {client}; {server}")
            moved += bytes_
            seen += client.demotions + server.demotions
            link += client.link
            print(f"  {moved / 2**30:.2f} GiB, {seen} demotions, {link / 2**30:.2f} GiB by link", flush=True)
        if not self.plain and (seen < rounds or link == 0):
            raise Failure(f"only {seen} demotions, {link} bytes by link: nothing was stressed")
        return f"{moved / 2**30:.2f} GiB, {seen} demotions"

    def demoting(self, commands, count, size):
        """A pair of processes that demote at random: (client's counters, server's, bytes moved)."""
        waiting = self.rng.choice(WAITING), self.rng.choice(WAITING)
        pair = []
        for role, way in zip(("server", "client"), waiting):
            extra = {"SLUICE_FAULT": f"demote:{self.rng.randrange(1 << 31)}", "SLUICE_UPGRADE": "eager",
                     "SLUICE_MODE": self.rng.choice(("dynamic", "dynamic", "direct", "indirect"))}
            pair.append(Peer(self, role, way, extra, common.FAULT_LIB))
        server, client = pair
        moved = 0
        for _ in range(commands):
            c2s, s2c = self.rng.randint(size // 2, size), self.rng.randint(size // 2, size)
            self.exchange(server, client, count, c2s, s2c, self.rng.randrange(STYLES))
            moved += (c2s + s2c) * count
        client.stop()
        server.stop()
        return (*(common.read_report(p.report) for p in (client, server)), moved)

    def accelerated(self, server, client, least):
        """By the reports at exit: this many connections at least went over the link."""
        if self.plain:
            return
        for peer in (server, client):
            counters = common.read_report(peer.report)
            if counters.accelerated < least:
                raise Failure(f"{peer.role}: {counters}, at least {least} wanted")


def not_accelerated(*ends):
    """One of these ends had not a single connection on a link."""
    return any(c.accelerated == 0 for c in ends)


def sockets_left():
    """Named Unix sockets of this network namespace: rendezvous names that nobody took away."""
    with open("/proc/net/unix") as f:
        return [line.split()[-1] for line in f.readlines()[1:] if "@" in line]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("part", nargs="*", help="churn, many, idle, kills, demotions, stress")
    ap.add_argument("--quick", action="store_true")
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--gib", type=int, default=4, help="of `stress`")
    ap.add_argument("--plain", action="store_true", help="without the library")
    args = ap.parse_args()
    parts = args.part or ["churn", "many", "idle", "kills", "demotions"]
    for part in parts:
        if part not in ("churn", "many", "idle", "kills", "demotions", "stress"):
            ap.error(f"no part {part!r}")
    if not args.plain:
        common.need_file(common.LIB, "make build")
        if {"many", "idle"} & set(parts):
            common.need_file(common.CLI, "make build")
        if {"demotions", "stress"} & set(parts):
            common.need_file(common.FAULT_LIB, "make build-fault")
    common.build_benches()
    common.adopt_orphans()
    common.raise_fd_limit()
    alone = common.private_network()
    print(f"seed {args.seed}", flush=True)
    soak = Soak(args)
    passed = failed = 0
    for part in parts:
        begin = time.monotonic()
        shm = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
        names = set(sockets_left())
        try:
            words = soak.run(part)
            left = common.leftovers()
            if left:
                raise Failure(f"left behind: {'; '.join(left)}")
            if alone and set(sockets_left()) - names:
                raise Failure(f"Unix sockets left behind: {sorted(set(sockets_left()) - names)[:4]}")
            files = [n for n in (set(os.listdir("/dev/shm")) if shm or os.path.isdir("/dev/shm") else set()) - shm
                     if "sluice" in n and not os.path.isdir(f"/dev/shm/{n}")]     # directories are workplaces
            if files:
                raise Failure(f"files left in /dev/shm: {files[:4]}")
            passed += 1
            print(f"ok      {part}  ({time.monotonic() - begin:.1f} s): {words}", flush=True)
        except Failure as e:
            failed += 1
            text = str(e)
            living = [c for c in common._children.values() if c.returncode is None]
            if isinstance(e, Hang):
                text = f"HANG: {text}\n" + common.backtraces([p for c in living for p in common.tree(c.pid)])
            for child in living:
                common.end(child, signal.SIGKILL)
            common.leftovers(0)
            print(f"FAILED  {part}  ({time.monotonic() - begin:.1f} s): {text}", flush=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
