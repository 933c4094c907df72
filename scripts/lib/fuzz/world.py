"""Executes a program by agents (fuzz/agent.c), plain or preloaded, and writes down what every call came to.

Where bytes of a stream stand is counted here, by what the calls said: so every byte that is read is checked against the
pattern at its place, also where only the run shows how many there are.
"""

import os
import re
import select
import signal
import socket
import time

import common

from .life import ASKED, OPTIONS

AGENT = os.path.join(common.ROOT, "fuzz", "bin", "agent")
# As fuzz/agent.h has them.
THREADS, COMMANDS, ANSWERS, MAIL_TO, MAIL_FROM = 3, 500, 540, 550, 560
# Longer than any wait of an agent's that must end.
LIMIT = 6

FLAGS = {"DONTWAIT": socket.MSG_DONTWAIT, "WAITALL": socket.MSG_WAITALL, "PEEK": socket.MSG_PEEK, "TRUNC": socket.MSG_TRUNC,
         "MORE": 0x8000, "NOSIGNAL": socket.MSG_NOSIGNAL, "OOB": socket.MSG_OOB}
SOCK = {"NONBLOCK": os.O_NONBLOCK, "CLOEXEC": os.O_CLOEXEC}
SIGNALS = {"USR1": signal.SIGUSR1, "USR2": signal.SIGUSR2}
REQUESTS = {"FIONREAD": 0x541B, "OUTQ": 0x5411}
# A port of the loopback device where nobody listens: what asked for it (tcpmux) is gone.
NOBODY = 1
# Of bytes whose number only the run shows.
MOST_PORTIONS = 1000
# From the death of a process until the libraries of those that it spoke to have heard of it, in seconds.
NEWS = 0.02
_COUNT = re.compile(r"= (-?\d+)")


def bits(op, names):
    return sum(names[f] for f in op.flags())


class Stopped(Exception):
    """No further call can be made. Its text is the last line of the transcript."""


class World:
    def __init__(self, program, calls, dir, lib=None, expected=None, limit=LIMIT):
        """`calls`: as the model has admitted them. `lib`: preloaded, if given. `expected`: a transcript; it is stopped at
        the first line that differs."""
        self.program, self.calls, self.lib, self.expected = program, calls, lib, expected
        self.limit = limit * common.SLOW
        self.lines = []
        self.pids, self.pidfds, self.tids = {}, {}, {}
        self.commands = {}          # (process, thread): where its commands go
        self.answers = {}           # channel: lines that came
        self.sent, self.read = {}, {}
        self.ports, self.clients = {}, {}
        self.report, self.stderr = os.path.join(dir, "report"), os.path.join(dir, "stderr")
        self.on_hang = None         # called with the processes that hang

    # --- from start to end ---

    def run(self):
        """The transcript: one line for each call, and how the processes ended."""
        try:
            self.start()
            for op, note in self.calls:
                line = self.execute(op, note)
                self.lines.append(line)
                if self.expected is not None and line != self.expected[len(self.lines) - 1]:
                    raise Stopped
            self.finish()
        except Stopped as e:
            if e.args:
                self.lines.append(str(e))
        finally:
            self.clean_up()
        return self.lines

    def start(self):
        with open(self.report, "w"), open(self.stderr, "w"):
            pass
        read, write = os.pipe()
        os.dup2(write, ANSWERS, inheritable=True)
        os.close(write)
        os.set_blocking(read, False)
        self.inherited, self.owned = [ANSWERS], [read]
        self.from_agents, self.torn = read, b""
        self.poll = select.poll()
        self.poll.register(read, select.POLLIN)
        who = {(p, 0) for p in self.program.start}
        for op, note in self.calls:
            who.add((op.proc, op.thread))
            if op.name == "fork":
                who.add((op.words[0], 0))
            if op.name == "thread":
                who.add((op.proc, int(op.words[0])))
        for p, t in sorted(who):
            read, write = os.pipe()
            number = COMMANDS + self.channel(p, t)
            os.dup2(read, number, inheritable=True)
            os.close(read)
            self.inherited.append(number)
            self.owned.append(write)
            self.commands[p, t] = write
        if any(op.name == "pass" for op, _ in self.calls):
            for i in range(6):
                a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                for s, number in ((a, MAIL_TO + i), (b, MAIL_FROM + i)):
                    os.dup2(s.fileno(), number, inheritable=True)
                    s.close()
                    self.inherited.append(number)
        env = {k: os.environ[k] for k in ("PATH", "HOME") if k in os.environ} | {"LC_ALL": "C"}
        preload = self.program.settings | {"LD_PRELOAD": self.lib, "SLUICE_REPORT": self.report} if self.lib else {}
        actions = [(os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                   (os.POSIX_SPAWN_OPEN, 1, self.stderr, os.O_WRONLY | os.O_APPEND, 0),
                   (os.POSIX_SPAWN_DUP2, 1, 2)]
        for p in self.program.start:
            argv = ["agent", str("ABCDEF".index(p))]
            own = env if p in self.program.without else env | preload
            self.born(p, os.posix_spawn(AGENT, argv, own, file_actions=actions))
        for number in self.inherited:
            os.close(number)
        self.inherited = []

    def born(self, name, pid):
        self.pids[name] = pid
        self.pidfds[name] = fd = os.pidfd_open(pid)
        self.poll.register(fd, select.POLLIN)

    def finish(self):
        """Ends what still runs, and tells how everything ended."""
        for name in sorted(self.pidfds):
            if (name, 0) in self.tids:      # its first thread is in a call
                os.kill(self.pids[name], signal.SIGKILL)
            else:
                self.tell(name, 0, "exit 0")
                self.hear(name, 0)
            self.await_death(name)
        ends = self.reap()
        for name, pid in sorted(self.pids.items()):
            self.lines.append(f"{name} ended: {ends.get(pid, 'nobody knows')}")
        with open(self.stderr, errors="replace") as f:
            if said := f.read(2000):
                self.lines.append("stderr: " + said.strip())

    def reap(self):
        ends, deadline = {}, time.monotonic() + self.limit
        while time.monotonic() < deadline:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid:
                ends[pid] = os.waitstatus_to_exitcode(status)
            else:
                time.sleep(0.0005)
        return ends

    def clean_up(self):
        for name in list(self.pidfds):
            try:
                os.kill(self.pids[name], signal.SIGKILL)
            except ProcessLookupError:
                pass
            os.close(self.pidfds.pop(name))
        self.reap()
        for fd in self.inherited + self.owned:
            os.close(fd)

    # --- talking to agents ---

    @staticmethod
    def channel(name, thread):
        return "ABCDEF".index(name) * THREADS + thread

    def tell(self, name, thread, command):
        os.write(self.commands[name, thread], command.encode() + b"\n")

    def hear(self, name, thread, ms=0):
        """The next answer of a thread."""
        channel = self.channel(name, thread)
        deadline = time.monotonic() + self.limit + ms / 1000
        while not self.answers.get(channel):
            left = deadline - time.monotonic()
            ready = self.poll.poll(max(0, left * 1000))
            if not ready and left <= 0:
                if self.on_hang:
                    self.on_hang([self.pids[n] for n in self.pidfds])
                raise Stopped(f"HANGS: {name}{thread} has not come back")
            self.take_answers()
            if not self.answers.get(channel) and any(fd != self.from_agents for fd, _ in ready):
                self.notice_deaths()
        return self.answers[channel].pop(0)

    def take_answers(self):
        try:
            data = self.torn + os.read(self.from_agents, 65536)
        except BlockingIOError:
            return
        *lines, self.torn = data.split(b"\n")
        for line in lines:
            channel, _, text = line.decode(errors="replace").partition(" ")
            self.answers.setdefault(int(channel), []).append(text)

    def notice_deaths(self):
        """Nobody ends but by a call."""
        for name, fd in self.pidfds.items():
            if select.select([fd], [], [], 0)[0]:
                self.poll.unregister(fd)
                os.close(self.pidfds.pop(name))
                ends = self.reap_one(self.pids[name])
                raise Stopped(f"DIED: {name}, {ends}")

    def reap_one(self, pid):
        try:
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        except ChildProcessError:
            return "somebody's child"

    def await_death(self, name):
        fd = self.pidfds[name]
        if not select.select([fd], [], [], self.limit)[0]:
            if self.on_hang:
                self.on_hang([self.pids[name]])
            raise Stopped(f"HANGS: {name} does not end")
        self.poll.unregister(fd)
        os.close(self.pidfds.pop(name))
        for t in range(THREADS):
            self.tids.pop((name, t), None)

    def await_asleep(self, name, thread):
        """Until the thread sleeps in the kernel, three looks in a row; or has come back."""
        task, asleep = f"{self.pids[name]}/task/{self.tids[name, thread]}", 0
        deadline = time.monotonic() + self.limit
        while asleep < 3 and time.monotonic() < deadline:
            self.take_answers()
            if self.answers.get(self.channel(name, thread)):
                return
            words = common.stat_of(task)
            if not words:
                return
            asleep = asleep + 1 if words[0] == "S" else 0
            time.sleep(0.0005)

    # --- calls ---

    def execute(self, op, note):
        """Makes one call. Returns its line of the transcript."""
        special = getattr(self, "run_" + op.name, None)
        if special:
            return special(op, note)
        command = getattr(self, "say_" + op.name)(op, note)
        if op.begins:
            self.tell(op.proc, op.thread, "&" + command)
            self.tids[op.proc, op.thread] = int(self.hear(op.proc, op.thread).split()[1])
            note["from"] = self.read.get(note["rx"].key, 0) if "rx" in note else 0
            wait = op.text("wait", "asleep")
            if wait == "asleep":
                self.await_asleep(op.proc, op.thread)
            elif wait != "none":
                time.sleep(float(wait) / 1000)
            return "begun"
        self.tell(op.proc, op.thread, command)
        return self.understood(op, note, self.hear(op.proc, op.thread, op.number("ms")))

    def run_join(self, op, note):
        text = self.hear(op.proc, op.thread)
        self.tids.pop((op.proc, op.thread), None)
        begun = next(n for o, n in self.calls if o is note["of"])
        line = self.understood(note["of"], {**begun, **note}, text)
        if note.get("reset"):
            # Whether the error was told is nobody's promise: nothing is left of it from here on.
            self.tell(op.proc, op.thread, f"over {note['of'].handle()}")
            line += ", " + self.hear(op.proc, op.thread)
        return line

    def understood(self, op, note, text):
        """An answer without what differs from run to run, and counted."""
        if op.name in ("send", "put", "recv", "get"):
            return self.counted(op, note, text)
        if op.name == "listen":
            hit = re.fullmatch(r"port (\d+)", text)
            self.ports[id(note["file"])] = hit and int(hit.group(1))
            return "port" if hit else text
        if op.name == "connect":
            hit = re.match(r"port (\d+)", text)
            if hit and note["listener"]:
                self.clients[note["conn"]] = int(hit.group(1))
            return re.sub(r"port \d+", "port", text)
        if op.name == "accept":
            port = self.clients.get(note.get("conn"))
            return re.sub(r"port (\d+)", lambda m: f"connection {note['conn'] if int(m.group(1)) == port else m.group(1)}", text)
        if op.name == "names":
            # Connections to several listeners may have one port in common.
            last = sorted(self.clients.items(), key=lambda one: one[0] == note["conn"])
            known = {p: "the listener" for p in self.ports.values()} | {p: f"connection {c}" for c, p in last}
            return re.sub(r"\d+", lambda m: known.get(int(m.group()), m.group()), text)
        if op.name == "settle" and note["fuzzy_out"]:
            return re.sub(r"OUT$", "none", re.sub(r"\|OUT|OUT\|", "", text))
        return text

    def counted(self, op, note, text):
        hit = _COUNT.match(text)
        n = max(0, int(hit.group(1))) if hit else 0
        if note.get("lost"):
            pass
        elif "tx" in note:
            self.sent[note["tx"].key] = self.sent.get(note["tx"].key, 0) + n
        elif "PEEK" not in op.flags():
            self.read[note["rx"].key] = self.read.get(note["rx"].key, 0) + n
        if note.get("broken") and "STUCK" not in text:
            return "broken"
        if note.get("fuzzy"):
            return _COUNT.sub("= some", text)
        if note.get("every"):
            # Behind none at all it tells of the end.
            return "= all" if n == note["count"] else _COUNT.sub(f"= NOT ALL, {n} of {note['count']}", text)
        return text

    def unread(self, direction):
        return self.sent.get(direction.key, 0) - self.read.get(direction.key, 0)

    def say_send(self, op, note):
        tx = note["tx"]
        return (f"send {op.handle()} {op.text('kind', 'send')} {op.number('len')} {bits(op, FLAGS)} {op.number('pieces', 1)} "
                f"{tx.seed} {self.sent.get(tx.key, 0)}")

    def say_recv(self, op, note):
        rx = note["rx"]
        return (f"recv {op.handle()} {op.text('kind', 'recv')} {op.number('len')} {bits(op, FLAGS)} {op.number('pieces', 1)} "
                f"{rx.seed} {self.read.get(rx.key, 0)}")

    def say_put(self, op, note):
        tx = note["tx"]
        return (f"put {op.handle()} {op.text('kind', 'send')} {op.number('len')} {op.number('chunk', 65536)} "
                f"{op.text('way', 'block')} {bits(op, FLAGS)} {tx.seed} {self.sent.get(tx.key, 0)}{' full' * op.number('full')}")

    def say_get(self, op, note):
        rx = note["rx"]
        note["count"] = self.unread(rx)
        size = max(1, note["count"]) if note["every"] else op.number("len")
        chunk = max(op.number("chunk", 65536), size // MOST_PORTIONS)
        return (f"get {op.handle()} {op.text('kind', 'recv')} {size} {chunk} "
                f"{op.text('way', 'block')} {bits(op, FLAGS)} {rx.seed} {self.read.get(rx.key, 0)}")

    def run_warm(self, op, note):
        tx, rx, q = note["tx"], note["rx"], note["q"].name
        size, rounds = op.number("len"), op.number("rounds")
        ends = (((op.proc, op.thread), op.handle(), 1, tx, rx), ((q, note["thread"]), note["handle"], 0, rx, tx))
        for who, handle, first, out, in_ in ends:
            self.tell(*who, f"exchange {handle} {rounds} {size} {first} {out.seed} {self.sent.get(out.key, 0)} "
                            f"{in_.seed} {self.read.get(in_.key, 0)}")
        texts = [self.hear(*who) for who, *_ in ends]
        for d in (tx, rx):
            for counts in (self.sent, self.read):
                counts[d.key] = counts.get(d.key, 0) + rounds * size
        return ", ".join(texts)

    def run_urgent(self, op, note):
        tx, q, size = note["tx"], note["q"].name, op.number("len")
        begin = self.sent.get(tx.key, 0)
        self.tell(q, note["thread"], f"urgent {note['handle']} {size} {tx.seed} {begin}")
        texts = []
        for length, flags, at in ((size, FLAGS["OOB"], begin), (1, 0, begin + size - 1)):
            self.tell(op.proc, op.thread, f"send {op.handle()} send {length} {flags} 1 {tx.seed} {at}")
            texts.append(self.hear(op.proc, op.thread))
        for counts in (self.sent, self.read):
            counts[tx.key] = counts.get(tx.key, 0) + size
        return ", ".join((*texts, self.hear(q, note["thread"])))

    def say_settle(self, op, note):
        return f"settle {op.handle()} {self.unread(note['rx'])} {note['end']}"

    def say_poll(self, op, note):
        items = " ".join(w.replace(":", " ") for w in note["items"])
        return f"poll {op.text('kind', 'poll')} {op.number('ms')} {items}"

    def say_epoll_create(self, op, note):
        return f"epoll_create {op.handle()} {bits(op, SOCK)}"

    def say_epoll_ctl(self, op, note):
        return f"epoll_ctl {op.handle()} {op.words[1]} {op.handle(2)} {op.text('mask', 'none')} {note['cookie']}"

    def say_epoll_wait(self, op, note):
        # A call that sleeps is to be told of news; those of room are none.
        bits = "OUT|WRNORM" if op.begins else "IN|OUT|PRI|RDHUP|RDNORM|WRNORM|HUP"
        spare = "".join(f" {word}" for word in (bits, *sorted(note["spare"])))
        return f"epoll_wait {op.handle()} {op.text('kind', 'epoll_wait')} {op.number('ms')} {op.number('most', 16)} {note['times']}{spare}"

    def say_listen(self, op, note):
        return f"listen {op.handle()} {self.program.family} {bits(op, SOCK)}"

    def say_socket(self, op, note):
        return f"socket {op.handle()} {self.program.family} {bits(op, SOCK)}"

    def say_connect(self, op, note):
        port = self.ports[id(note["listener"])] if note["listener"] else NOBODY
        return f"connect {op.handle()} {self.program.family} {port}"

    def say_accept(self, op, note):
        return f"accept {op.handle()} {op.handle(1)} {op.text('kind', 'accept')} {bits(op, SOCK)}"

    def say_close(self, op, note):
        return f"close {op.handle()}"

    def say_dup(self, op, note):
        return f"dup {op.text('kind', 'dup')} {op.handle()} {op.handle(1)} {bits(op, SOCK)}"

    def say_shutdown(self, op, note):
        return f"shutdown {op.handle()} {('RD', 'WR', 'RDWR').index(note['how'])}"

    def say_setopt(self, op, note):
        level, number, kind = OPTIONS[op.words[1]]
        return f"setopt {op.handle()} {level} {number} {kind} {op.number('value')}"

    def say_getopt(self, op, note):
        level, number = ASKED[op.words[1]]
        return f"getopt {op.handle()} {level} {number}"

    def say_ioctl(self, op, note):
        what = op.text("what", "FIONREAD")
        return f"ioctl {op.handle()} {REQUESTS[what]}{' 0' if what == 'OUTQ' else ''}"

    def say_fcntl(self, op, note):
        return f"fcntl {op.handle()} {op.text('what')} {op.number('on')}"

    def say_names(self, op, note):
        return f"names {op.handle()}"

    def say_sigaction(self, op, note):
        return f"sigaction {SIGNALS[op.words[0]]} {op.number('restart')}"

    def run_kill(self, op, note):
        target = int(op.words[0])
        if note["asleep"]:
            self.await_asleep(op.proc, target)
        command = f"kill {target} {int(SIGNALS[op.words[1]])}"
        self.tell(op.proc, op.thread, command)
        line = self.hear(op.proc, op.thread)
        if note.get("ends"):
            self.await_asleep(op.proc, target)
            if not self.answers.get(self.channel(op.proc, target)):
                # It was awake a moment, since its connection went to a link or back: docs/limitations.md.
                self.tell(op.proc, op.thread, command)
                line = self.hear(op.proc, op.thread)
        return line

    def run_cancel(self, op, note):
        target = int(op.words[0])
        self.await_asleep(op.proc, target)
        self.tids.pop((op.proc, target), None)
        self.tell(op.proc, op.thread, f"cancel {target}")
        return self.hear(op.proc, op.thread)

    def run_thread(self, op, note):
        target = int(op.words[0])
        self.tell(op.proc, op.thread, f"thread {target}")
        return self.hear(op.proc, op.thread) + ", " + self.hear(op.proc, target)

    def run_fork(self, op, note):
        child = op.words[0]
        self.tell(op.proc, op.thread, f"fork {'ABCDEF'.index(child)}")
        text = self.hear(op.proc, op.thread)
        born, _, pid = self.hear(child, 0).partition(" ")
        self.born(child, int(pid))
        return f"{text}, {born}"

    def run_exec(self, op, note):
        self.tell(op.proc, 0, "exec")
        return self.hear(op.proc, 0)

    def run_pass(self, op, note):
        q = note["q"].name
        self.tell(op.proc, op.thread, f"pass {op.handle()} {'ABCDEF'.index(q)}")
        sent = self.hear(op.proc, op.thread)
        self.tell(q, 0, f"take {note['new']} {0x40000000 if 'CLOEXEC' in op.flags() else 0}")
        return sent + ", " + self.hear(q, 0)

    def run_exit(self, op, note):
        self.tell(op.proc, 0, f"exit {op.number('raw')}")
        text = self.hear(op.proc, 0)
        self.await_death(op.proc)
        return text

    def run_sigkill(self, op, note):
        os.kill(self.pids[op.proc], signal.SIGKILL)
        self.await_death(op.proc)
        # A byte that is sent before the library has heard of it counts as one that was sent before the death.
        time.sleep(NEWS)
        return "gone"

    def run_pause(self, op, note):
        time.sleep(op.number("ms") / 1000)
        return "later"
