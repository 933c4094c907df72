#!/usr/bin/env python3
"""Writes docs/compatibility.md from compat.toml: what a program may do with a TCP connection, and how it is served.

With --check it writes nothing and says in one line each what is wrong: a hooked symbol without a row, or that c-tests do not
name; a row of a symbol that is not hooked, a row without a test, a test that is no body of c-tests, what a link is to serve
without a test that must stay on its link (c-tests/stays.txt), a page that is not the table's. What passes Sluice by has
nothing that a test could show, so those rows have none.

The hooked symbols are those of src/preload/symbols.txt, which scripts/check-symbols.sh holds against the built library.
Last line of --check and --self-test: N passed, N failed.

  scripts/compat.py              writes the page
  scripts/compat.py --check      is the table whole, and the page the table's?
  scripts/compat.py --self-test  does --check find what it should?
"""
import argparse
import copy
import pathlib
import re
import sys
import textwrap
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / "compat.toml"
PAGE = ROOT / "docs" / "compatibility.md"
NOT_HOOKS = {"sluice_counters"}  # where two copies of the library find each other
STAYS = ROOT / "c-tests" / "stays.txt"
LINK, PAST = "link", "unseen"
KEYS = {"what", "symbols", "served", "note", "tests"}
HEAD = """
# Compatibility

What a program may do with a TCP connection, how Sluice serves it, and which bodies of `c-tests` show that: each
runs plain and preloaded, and what it prints must be the same. What works, but is not as fast, or not quite as on TCP, is in
[limitations.md](limitations.md).

Generated from [compat.toml](../compat.toml) by `scripts/compat.py`: change the table.

A call or an option that is not listed is not looked at: the kernel's socket serves it. The words of the second column:
"""


def hooked():
    return set((ROOT / "src/preload/symbols.txt").read_text().split()) - NOT_HOOKS


def bodies():
    """The names in the tables of c-tests, and all words there, read from the source: nothing need be built."""
    text = "".join(path.read_text() for path in sorted((ROOT / "c-tests").rglob("*.c")))
    return set(re.findall(r'^\s*(?:TWO|ONE)\("([^"]+)"', text, re.MULTILINE)), set(re.findall(r"\w+", text))


def code(names):
    return ", ".join(f"`{name}`" for name in names)


def title(row):
    return row.get("what") or code(row.get("symbols", []))


def page(table):
    out = [HEAD.strip(), "", "| word | meaning |", "|---|---|"]
    out += [f"| **{word}** | {meaning} |" for word, meaning in table["served"].items()]
    for group in table["group"]:
        out += ["", f"## {group['title']}", ""]
        if text := group.get("text"):
            out += [textwrap.fill(text, 120), ""]
        out += ["| what | served | to know | shown by |", "|---|---|---|---|"]
        for row in group["row"]:
            cells = title(row), row.get("served"), row.get("note", ""), code(row.get("tests", []))
            out.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(out) + "\n"


def faults(table, symbols, names, words, stays, text):
    """What is wrong with a table, given the hooked symbols, the bodies and words of c-tests, those bodies whose connections stay on
    their link, and the page as it is; a line each."""
    found, named = [], set()
    for group in table["group"]:
        for row in group["row"]:
            where = f"{group['title']}: {title(row)}"
            bad = [f"has no such key: {key}" for key in sorted(row.keys() - KEYS)]
            if row.get("served") not in table["served"]:
                bad.append(f"is served by no word that is explained: {row.get('served')}")
            bad += [f"{symbol} is not hooked" for symbol in row.get("symbols", []) if symbol not in symbols]
            bad += [f"no body of c-tests is named {test}" for test in row.get("tests", []) if test not in names]
            if bool(row.get("tests")) == (row.get("served") == PAST):
                bad.append("has a test, and passes Sluice by" if row.get("tests") else "has no test")
            if row.get("served") == LINK and row.get("tests") and not stays & set(row["tests"]):
                bad.append("no test of it has to stay on its link")
            found += [f"{where}: {fault}" for fault in bad]
            named.update(row.get("symbols", []))
    found += [f"{symbol} is hooked and has no row" for symbol in sorted(symbols - named)]
    found += [f"{symbol} has a row, and no body calls it" for symbol in sorted(named & symbols - words)]
    if page(table) != text:
        found.append(f"{PAGE.relative_to(ROOT)} is not what scripts/compat.py writes")
    return found


def self_test():
    whole = {"served": {"link": "Fast.", PAST: "Not at all."},
             "group": [{"title": "Calls", "row": [{"symbols": ["read", "write"], "served": "link", "tests": ["echo"]},
                                                  {"what": "magic", "served": PAST}]}]}
    row = lambda table: table["group"][0]["row"][0]
    breaks = {
        "": lambda table: None,
        "write is hooked and has no row": lambda table: row(table)["symbols"].remove("write"),
        "splice is not hooked": lambda table: row(table)["symbols"].append("splice"),
        "has no test": lambda table: row(table).update(tests=[]),
        "has a test, and passes Sluice by": lambda table: row(table).update(served=PAST),
        "no body of c-tests is named echoes": lambda table: row(table)["tests"].append("echoes"),
        "is served by no word that is explained: soon": lambda table: row(table).update(served="soon"),
        "has no such key: test": lambda table: row(table).update(test=["echo"]),
        "is not what scripts/compat.py writes": lambda table: row(table).update(note="New."),
        "no test of it has to stay on its link": lambda table: row(table).update(tests=["ends"]),
        "tee has a row, and no body calls it": lambda table: row(table)["symbols"].append("tee"),
    }
    failed = 0
    for expected, spoil in breaks.items():
        table = copy.deepcopy(whole)
        spoil(table)
        written = page(whole if "writes" in expected else table)
        symbols = {"read", "write"} | ({"tee"} if "tee" in expected else set())
        got = faults(table, symbols, {"echo", "ends"}, {"read", "write"}, {"echo"}, written)
        if len(got) != bool(expected) or not all(line.endswith(expected) for line in got):
            failed += 1
            print(f"FAILED  {expected or 'a table without a fault'}: {got}")
    print(f"{len(breaks) - failed} passed, {failed} failed")
    return failed


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    how = p.add_mutually_exclusive_group()
    how.add_argument("--check", action="store_true")
    how.add_argument("--self-test", action="store_true")
    args = p.parse_args()
    if args.self_test:
        return 1 if self_test() else 0
    table = tomllib.loads(TABLE.read_text())
    if not args.check:
        PAGE.write_text(page(table))
        return 0
    found = faults(table, hooked(), *bodies(), set(STAYS.read_text().split()), PAGE.read_text() if PAGE.exists() else "")
    for line in found:
        print(line)
    count = sum(len(group["row"]) for group in table["group"])
    print(f"{max(count - len(found), 0)} passed, {len(found)} failed")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
