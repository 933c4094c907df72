"""Programs: what is executed, as text that a person can read, change and run again.

    set SLUICE_UPGRADE=eager        a setting of the preloaded world
    build fault                     the library with SLUICE_FAULT, else the usual one
    family 46                       4, 6, or 46: the accepted end sees a v4-mapped address
    start A B                       processes that are there from the beginning
    without A                       of these, one that is plain in the preloaded world, too
    A0 listen 1                     thread 0 of A makes a listener and calls it 1
    B0& recv 3 len=100              begun: a call that may sleep
    B0 join                         its result

A word with a = is an option, any other word names a descriptor (a handle of the process) or says which.
"""

import dataclasses


@dataclasses.dataclass
class Op:
    """One line: who calls what."""
    proc: str
    thread: int
    name: str
    words: list = dataclasses.field(default_factory=list)
    options: dict = dataclasses.field(default_factory=dict)
    begins: bool = False

    def __str__(self):
        who = f"{self.proc}{self.thread}{'&' if self.begins else ''}"
        return " ".join([who, self.name, *map(str, self.words), *(f"{k}={v}" for k, v in self.options.items())])

    @staticmethod
    def parse(line):
        who, name, *rest = line.split()
        begins = who.endswith("&")
        who = who.rstrip("&")
        words = [w for w in rest if "=" not in w]
        options = dict(w.split("=", 1) for w in rest if "=" in w)
        return Op(who[0], int(who[1:]), name, words, options, begins)

    def handle(self, n=0):
        return int(self.words[n])

    def number(self, option, default=0):
        return int(self.options.get(option, default))

    def text(self, option, default=""):
        return str(self.options.get(option, default))

    def flags(self):
        return set(filter(None, self.text("flags").split("|")))

    def with_(self, **options):
        return dataclasses.replace(self, options={**self.options, **options})


@dataclasses.dataclass
class Program:
    settings: dict
    ops: list
    build: str = "usual"
    family: int = 4
    start: str = "AB"
    without: str = ""

    def head(self):
        settings = [f"set {k}={v}" for k, v in self.settings.items()]
        head = [*settings, f"build {self.build}", f"family {self.family}", "start " + " ".join(self.start)]
        return head + ["without " + " ".join(self.without)] * bool(self.without)

    def __str__(self):
        return "\n".join(self.head() + [str(op) for op in self.ops]) + "\n"

    @staticmethod
    def parse(text):
        out = Program({}, [])
        for line in text.splitlines():
            line = line.partition("#")[0].strip()
            word, _, rest = line.partition(" ")
            if not line:
                continue
            if word == "set":
                key, _, value = rest.partition("=")
                out.settings[key] = value
            elif word == "build":
                out.build = rest
            elif word == "family":
                out.family = int(rest)
            elif word == "start":
                out.start = rest.replace(" ", "")
            elif word == "without":
                out.without = rest.replace(" ", "")
            else:
                out.ops.append(Op.parse(line))
        return out

    def with_ops(self, ops):
        return dataclasses.replace(self, ops=list(ops))
