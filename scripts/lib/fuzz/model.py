"""What is known of all descriptors while a program runs, and with that which calls have one outcome only.

The model is no second TCP: it does not say what a call returns, plain TCP does. It says whether a call's outcome follows
from what happened before, or depends on when bytes, ends and errors arrive. A call of the second kind is `Invalid`. So a
program whose every call is valid has one transcript, and whatever changes that transcript is a difference. The generator
proposes, shrinking drops lines, a person edits a file: it is always the model that admits a call.

Known of a direction: bytes sent, read, and arrived for certain (a `settle` has seen them); the same of its end. Where a
call is one that sleeps, it is also known whether it would, and what ends its sleep: nothing may happen between that and
its `join` that could change its outcome.
"""

from .bytes import Bytes
from .life import Life
from .ready import Ready
from .state import Invalid, Pending, Process, Stream, need


class Model(Bytes, Ready, Life):
    # What lies unread may be this much, so that neither TCP nor a ring refuses more.
    def __init__(self, program):
        self.family = program.family
        self.processes = {}
        for name in program.start:
            self.new_process(name)
        self.conns = 0
        self.cookies = 0
        ring = size_of(program.settings.get("SLUICE_RING", "256K"))
        # A call that does not wait: within half a ring, which every ring is lent at least.
        self.most_nonblocking = min(ring // 2, 32 << 10)
        self.most_blocking = 192 << 10
        # What comes to the other end though nobody reads there: well within the smallest buffer that TCP receives into.
        self.most_settled = 48 << 10
        # Then each of several buffers of a call goes by itself: docs/limitations.md.
        self.is_direct = program.settings.get("SLUICE_MODE") == "direct"
        # What one call brings in one piece.
        self.most_whole = min(ring // 2, 4096)

    def new_process(self, name):
        need(name not in self.processes, "there is one of this name")
        p = self.processes[name] = Process(name, "ABCDEF".index(name))
        return p

    # --- looking up ---

    def process(self, op):
        p = self.processes.get(op.proc)
        need(p and p.alive and op.thread in p.threads, "no such thread")
        return p

    def handle(self, op, n=0, process=None):
        p = process or self.process(op)
        need(op.handle(n) in p.handles, "no such descriptor")
        return p.handles[op.handle(n)]

    def stream(self, op, n=0):
        file = self.handle(op, n).file
        need(isinstance(file, Stream), "not a connection")
        return file

    def streams(self):
        seen = {}
        for p in self.processes.values():
            if p.alive:
                for h in p.handles.values():
                    if isinstance(h.file, Stream):
                        seen[id(h.file)] = h.file
        return list(seen.values())

    def pendings(self):
        return [t for p in self.processes.values() if p.alive for t in p.threads.values() if t]

    def files_of(self, kind, process):
        return [h for h, x in process.handles.items() if isinstance(x.file, kind)]

    # --- steps ---

    def step(self, op):
        """Admits a call, and takes it that it was made. Returns what who executes it must know."""
        p = self.process(op)
        fired = [x for x in self.pendings() if x.strict and x.is_fired()]
        if op.name == "join":
            x = p.threads[op.thread]
            need(x, "nothing was begun")
            need(x.is_fired(), "it sleeps")
            need(not fired or x in fired, "another has to be joined first")
            p.threads[op.thread] = None
            # A call that a signal ended has done what it had done.
            return {"of": x.op, **(x.finish() or {})}
        need(not fired, "a call that was begun has come to its end: join it")
        need(p.threads[op.thread] is None, "this thread is in a call")
        need(not op.begins or op.name in ("recv", "put", "get", "poll", "epoll_wait", "accept"), "cannot be begun")
        rule = getattr(self, "op_" + op.name, None)
        need(rule, "no such call")
        return rule(op, p) or {}

    def begin(self, op, process, strict, fired, finish, files=()):
        x = Pending(op, process, strict, fired, finish, list(files))
        x.moved = self.moved(x.files)
        process.threads[op.thread] = x
        return x


def size_of(text):
    """Of a setting."""
    return int(text[:-1]) << {"K": 10, "M": 20}[text[-1]] if text[-1] in "KM" else int(text)


def admitted(program):
    """The calls of a program that the model admits, in order, each with what has to be known of it; and the model behind."""
    model, out = Model(program), []
    for op in program.ops:
        try:
            out.append((op, model.step(op)))
        except (Invalid, ValueError, IndexError, KeyError):
            continue
    return out, model
