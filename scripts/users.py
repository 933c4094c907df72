#!/usr/bin/env python3
"""Programs as people run them on one host: does the same come out with the library, how much goes
by the link, and is it as fast?

    scripts/users.py              each once plain and once with the library at all ends
    scripts/users.py --rounds 5   so many pairs, in turn: medians. From five on one fails, too,
                                  whose speed is below 0.97 of plain
    scripts/users.py --table      five pairs, and writes docs/programs.md. It is a table of all, or
                                  names those that `--without` leaves out
    scripts/users.py -k redis     those whose name contains the text
    scripts/users.py --list
    scripts/install-deps.sh --users    installs them; what comes from PyPI this script installs

A use fails whose results differ, which does not end well, or of whose bytes less goes by the link
than `least` says. Runs in a network namespace of its own where allowed. What is not installed is
skipped, and said. The last line: `N passed, N failed`.
"""

import argparse
import collections
import importlib
import os
import pathlib
import subprocess
import sys
import time
import traceback

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import common    # noqa: E402
from common import Failure, Hang    # noqa: E402
from compare import machine    # noqa: E402
from users import use    # noqa: E402

FLOOR = 0.97    # of plain's speed, at least
FEW = 5         # of pairs: fewer do not tell how fast a program is
TABLE = os.path.join(common.ROOT, "docs", "programs.md")
for module in sorted(pathlib.Path(use.__file__).parent.glob("[!_]*.py")):
    importlib.import_module(f"users.{module.stem}")


def once(one, mode, args):
    run = use.UseRun(mode, args.lib)
    try:
        one.act(run)
        run.finish()
        return run
    except Hang as e:
        raise Failure(common.hung(e)) from None
    finally:
        run.rescue()
        subprocess.run(["rm", "-rf", run.dir], check=False)


class Row:
    """A program's pairs of runs."""

    def __init__(self, one):
        self.use, self.plain, self.ratios, self.shares = one, [], [], []
        self.reasons = collections.Counter()

    def add(self, plain, both):
        for one, other in zip(plain.results, both.results):
            if one != other:
                raise Failure(f"not what comes out plain: {different(one, other)}")
        if len(plain.results) != len(both.results):
            raise Failure("another number of results than plain")
        if both.counters.share() < self.use.least:
            raise Failure(f"less than {self.use.least * 100:.0f} % by link: {both.counters}")
        self.plain.append(plain.seconds)
        self.ratios.append(plain.seconds / both.seconds)
        self.shares.append(both.counters.share())
        self.reasons.update(both.counters.reasons)

    def ratio(self):
        """As it is shown, so that what is read and what is judged are the same."""
        return round(common.median(self.ratios), 2)

    def is_slow(self):
        return len(self.ratios) >= FEW and self.ratio() < FLOOR

    def times(self):
        return f"{self.ratio():.2f} [{min(self.ratios):.2f}..{max(self.ratios):.2f}]"

    def seconds(self):
        return f"{common.median(self.plain):.1f}"

    def link(self):
        return f"{common.median(self.shares) * 100:.0f} %"

    def why(self):
        """Why the rest is on TCP, where much is: the reasons that most connections gave."""
        if common.median(self.shares) >= 0.9:
            return ""
        named = [f"{code} {n}" for code, n in self.reasons.most_common() if code != "none"]
        return ", ".join(named[:3])

    def text(self):
        rest = f"; on TCP: {self.why()}" if self.why() else ""
        return (f"{self.times()} times as fast as plain ({self.seconds()} s), "
                f"{self.link()} by link{rest}")


def different(one, other):
    """Shows two results from a little before the first place where they differ."""
    texts = repr(one), repr(other)
    same = len(os.path.commonprefix(texts))
    plain, both = (text[max(0, same - 100):same + 300] for text in texts)
    return f"\n  plain {plain}\n  both  {both}"


def measured(one, args):
    row = Row(one)
    for n in range(args.rounds):
        runs = {}
        for mode in ("plain", "both") if n % 2 == 0 else ("both", "plain"):
            try:
                runs[mode] = once(one, mode, args)
            # A use may stumble over anything: over a file that is not there, over text that it
            # cannot read. The others go on.
            except Exception as e:
                raise Failure(f"{mode}: {stumbled(e)}") from None
        row.add(runs["plain"], runs["both"])
    return row


def stumbled(e):
    """What went wrong in a use, and where if it is no check that failed."""
    if isinstance(e, Failure):
        return str(e)
    place = traceback.extract_tb(e.__traceback__)[-1]
    return f"{type(e).__name__}: {e} ({os.path.basename(place.filename)}, line {place.lineno})"


def write_table(rows, skipped, rounds):
    left_out = "; ".join(f"{one.title} ({one.what})" for one in skipped)
    left_out = f"\nNot tried there: {left_out}.\n" if left_out else ""
    head = f"""# Programs that were tried

`scripts/users.py --table` made this page. It ran each program {rounds} times plain and as often
with the library at all ends, in turn, with default settings. Each time the same came out. All
figures are medians.

- *By link*: the share of all bytes that did not go by TCP.
- *Seconds*: how long a user waits for it plain, with the servers already up.
- *Times*: how many times as fast it is with the library, [lowest..highest]. The program's own work
  takes its time either way.
- *On TCP*: where more than a tenth of the bytes stayed on TCP, the reasons that most connections
  gave, and how many did, in all runs together. `sluice reasons` explains them.

{machine()}.
{left_out}
| Program | What it does | By link | Seconds | Times | On TCP |
|---|---|---|---|---|---|
"""
    with open(TABLE, "w") as f:
        f.write(head)
        for row in rows:
            cells = (row.use.title, row.use.what, row.link(), row.seconds(), row.times(), row.why())
            # A bar in a cell would end it.
            f.write("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n")


def main():
    form = argparse.RawDescriptionHelpFormatter
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    ap.add_argument("--rounds", type=int, default=1)
    ap.add_argument("--table", action="store_true")
    ap.add_argument("--without", action="append", default=[], metavar="NAME",
                    choices=[one.name for one in use.USES], help="leaves this one out")
    ap.add_argument("--filter", "-k", default="")
    ap.add_argument("--list", action="store_true")
    ap.add_argument("--needs", action="store_true", help="what scripts/install-deps.sh looks for")
    ap.add_argument("--lib", default=common.LIB, help="the library")
    args = ap.parse_args()
    uses = [one for one in use.USES if args.filter in one.name]
    if args.needs:
        needs = {need for one in uses for need in one.needs}
        print("\n".join(sorted({"/usr/share/python-wheels:python3-venv", *needs})))
        return 0
    if args.list:
        print("\n".join(f"{one.name}: {one.title}, {one.what}" for one in uses))
        return 0
    if not uses:
        sys.exit("nothing matches")
    if args.table and args.filter:
        ap.error("--table is a table of all")
    args.rounds = max(args.rounds, FEW) if args.table else args.rounds
    args.lib = os.path.abspath(args.lib)
    common.need_file(args.lib, "make build")
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    common.adopt_orphans()
    # Before it has a network of its own, which does not lead to PyPI.
    skipped = {one: "left out" if one.name in args.without else one.lacks() for one in uses}
    skipped = {one: why for one, why in skipped.items() if why}
    for one, why in skipped.items():
        print(f"skipped {one.name}: {why}", flush=True)
    if args.table and any(one.name not in args.without for one in skipped):
        sys.exit("no table without these: install them, or name each by --without")
    common.private_network()
    rows, failed = [], 0
    for one in uses:
        if one in skipped:
            continue
        begin = time.monotonic()
        try:
            row = measured(one, args)
        except Failure as e:
            print(f"FAILED  {one.name}  ({time.monotonic() - begin:.1f} s): {e}", flush=True)
            failed += 1
            continue
        rows.append(row)
        word = "FAILED " if row.is_slow() else "ok     "
        print(f"{word} {one.name}  ({time.monotonic() - begin:.1f} s): {row.text()}", flush=True)
    if args.table and failed:
        print("no table: it would lack what failed")
    elif args.table:
        write_table(rows, skipped, args.rounds)
    failed += sum(row.is_slow() for row in rows)
    if skipped:
        print(f"{len(skipped)} skipped: {', '.join(one.name for one in skipped)}")
    print(f"{len(uses) - len(skipped) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
