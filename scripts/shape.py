#!/usr/bin/env python3
"""Measures how the engine's code hangs together, and with --check holds it to what it has come to.

    scripts/shape.py            a table of all measures
    scripts/shape.py --check    fails if one is above its limit below
    scripts/shape.py --where    also the places that are counted

An arrow leads from a file of DRAWN's packages to each other one that it names by `use` or by a
path. That none leads to a package above is the compiler's to see. Tests do not count.
"""
import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# What the hooks call, down to what knows only of this process: the files that are drawn.
DRAWN = ("engine", "readiness", "rendezvous", "sockets", "transport", "runtime")
PACKAGES = ("preload", *DRAWN, "stream", "fabric", "stats", "cli")
COLUMNS = 100
FUNCTION = 80
# None of these may grow. A change that makes one smaller writes the new value here.
LIMITS = {
    "files in the largest circle": 4,
    "is_remote( elsewhere": 0,
    "unlock by hand above fabric": 0,
    "ignored locks": 0,
    "public flags of a socket": 22,
    "functions over 80 lines": 1,
    "lines over 100 columns": 0,
    "comments with who, whoever, behind": 0,
}


def code_of(path):
    """A file's text without the tests at its end."""
    text = path.read_text()
    at = re.search(r"^#\[cfg\((?:all\()?test\b[^\n]*\n(?:#\[[^\n]*\n)*(?:pub(?:\([^)]*\))? )?mod \w+ \{", text, re.M)
    return text[:at.start()] if at else text


def without_comments(text):
    text = re.sub(r"//[^\n]*", "", text)
    return re.sub(r'"(?:\\.|[^"\\])*"', '""', text)


def tests_among(files):
    """The files that are whole modules of tests."""
    for f in files:
        for name in re.findall(r"^#\[cfg\(test\)\]\n(?:pub(?:\([^)]*\))? )?mod (\w+);", f.read_text(), re.M):
            inside = f.parent if f.stem in ("mod", "lib") else f.with_suffix("")
            yield inside / f"{name}.rs"


def module_of(path):
    """(package, module, ...)"""
    package, _, *parts = path.relative_to(ROOT / "src").with_suffix("").parts
    if parts[-1] in ("mod", "lib"):
        parts.pop()
    return (package, *parts)


def expand(path):
    """`a::{b, c::{d}}` as its single paths."""
    at = path.find("{")
    if at < 0:
        return [path.strip()]
    depth, start, out = 0, at + 1, []
    for i in range(at, len(path)):
        if path[i] == "{":
            depth += 1
        elif path[i] == "}":
            depth -= 1
        if path[i] == "," and depth == 1 or path[i] == "}" and depth == 0:
            piece = path[start:i].strip()
            start = i + 1
            if piece:
                out += expand(path[:at] + piece)
    return out


def named(text, module):
    """The absolute paths within DRAWN that a module's text names."""
    text = without_comments(text)
    roots = "crate|super|self|" + "|".join(f"sluice_{p}" for p in DRAWN)
    paths = []
    for m in re.finditer(rf"\buse\s+((?:{roots})\b[^;]*);", text):
        paths += expand(re.sub(r"\s+", " ", m.group(1)))
    # `use a::part`, then `part::name`.
    for path in list(paths):
        full, _, alias = path.removesuffix("::self").partition(" as ")
        last = alias or full.split("::")[-1]
        if last and last[0].islower():
            names = re.findall(rf"(?<![:\w]){last}::(\w+)", text)
            paths += [f"{full}::{name}" for name in set(names)]
    paths += re.findall(rf"\b(?:{roots})(?:::\w+)+", text)
    for path in paths:
        parts = [p.strip() for p in re.sub(r" as \w+", "", path).split("::")]
        at = list(module) if parts[0] != "crate" else [module[0]]
        if parts[0].startswith("sluice_"):
            at = [parts.pop(0).removeprefix("sluice_")]
        for i, part in enumerate(parts):
            if part == "crate" or part == "self":
                continue
            if part == "super" and at:
                at.pop()
            else:
                at += parts[i:]
                break
        yield tuple(at)


def handed_on(files, modules):
    """{(module, ..., name): file} of what a module has from its parts by `pub use part::name`."""
    out = {}
    for f in files:
        module, text = module_of(f), without_comments(code_of(f))
        for m in re.finditer(r"\bpub(?:\([^)]*\))? use (?:self::)?(\w+::[^;]*);", text):
            for path in expand(re.sub(r"\s+", " ", m.group(1))):
                original, _, name = path.partition(" as ")
                parts = tuple(original.split("::"))
                part = modules.get((*module, *parts[:-1]))
                if part:
                    out[(*module, name or parts[-1])] = part
    return out


def arrows(files):
    """{file: other files that it names}"""
    modules = {module_of(f): f for f in files}
    handed = handed_on(files, modules)
    out = {}
    for f in files:
        module = module_of(f)
        if len(module) == 1:
            continue  # lib.rs names all that there is
        out[f] = set()
        for path in named(code_of(f), module):
            while path and path not in modules:
                if path in handed:
                    path = module_of(handed[path])
                    break
                path = path[:-1]
            target = modules.get(path) if len(path) > 1 else None
            # A parent and its own parts are one.
            if path and target != f and path != module[:len(path)]:
                out[f].add(target)
    return out


def circles(graph):
    """The strongly connected components with more than one member (Tarjan)."""
    order, low, on, stack, found = {}, {}, set(), [], []
    sys.setrecursionlimit(10000)

    def visit(node):
        order[node] = low[node] = len(order)
        stack.append(node)
        on.add(node)
        for to in graph.get(node, ()):
            if to not in order:
                visit(to)
                low[node] = min(low[node], low[to])
            elif to in on:
                low[node] = min(low[node], order[to])
        if low[node] == order[node]:
            circle = []
            while True:
                member = stack.pop()
                on.discard(member)
                circle.append(member)
                if member == node:
                    break
            if len(circle) > 1:
                found.append(circle)

    for node in graph:
        if node not in order:
            visit(node)
    return sorted(found, key=len, reverse=True)


def functions(path):
    """(name, first line, lines) of each function."""
    lines = code_of(path).splitlines()
    for at, line in enumerate(lines):
        m = re.match(r"( *)(?:pub(?:\([^)]*\))? )?(?:const )?(?:unsafe )?(?:extern \"C\" )?fn (\w+)", line)
        if m and not line.rstrip().endswith(";"):
            for end in range(at, len(lines)):
                # A declaration without a body, over several lines.
                if lines[end].startswith(m.group(1) + ")") and lines[end].rstrip().endswith(";"):
                    break
                if lines[end].startswith(m.group(1) + "}"):
                    yield m.group(2), at + 1, end - at + 1
                    break


def measures():
    """{measure: (value, places)}"""
    files = sorted(f for p in DRAWN for f in (ROOT / "src" / p / "src").rglob("*.rs"))
    tests = set(tests_among(files))
    files = [f for f in files if f not in tests]
    name = lambda f: str(f.relative_to(ROOT / "src"))  # noqa: E731
    graph = arrows(files)
    circle = circles(graph)
    sources = {p: sorted((ROOT / "src" / p).rglob("*.rs")) for p in PACKAGES}
    every = [f for p in PACKAGES for f in sources[p]]
    parts = ("src", "targets", "tests", "tool")
    drawn = [*every, *sorted(f for p in parts for f in (ROOT / "fuzz" / "coverage" / p).rglob("*.rs"))]
    at = lambda f, n: f"{f.relative_to(ROOT)}:{n}"  # noqa: E731

    def lines(paths, pattern, of=without_comments):
        return [at(f, n) for f in paths for n, l in enumerate(of(code_of(f)).splitlines(), 1) if re.search(pattern, l)]

    apart = {("transport", "verbs"), ("sockets", "carrier"), ("rendezvous", "hosts")}
    above = [f for f in files if module_of(f)[:2] not in apart]
    long = [f"{at(f, n)} {fn} {size}" for f in every for fn, n, size in functions(f) if size > FUNCTION]
    same = lambda text: text  # noqa: E731
    sock = ROOT / "src" / "sockets" / "src" / "socket.rs"
    out = {f"lines of {p}": (sum(len(f.read_text().splitlines()) for f in sources[p]), []) for p in PACKAGES}
    out |= {
        "files in the largest circle": (len(circle[0]) if circle else 0, [name(f) for f in circle[0]] if circle else []),
        "is_remote( elsewhere": (0, lines(above, r"\bis_remote\(|\bremote::")),
        "unlock by hand above fabric": (0, lines(files + sources["preload"], r"\.unlock\(")),
        "ignored locks": (0, lines(files, r"let _ = .*\.(lock|enter)\(")),
        "public flags of a socket": (0, lines([sock], r"^\s*pub(?:\([^)]*\))? \w+: Atomic(Bool|U8)")),
        f"functions over {FUNCTION} lines": (0, long),
        f"lines over {COLUMNS} columns": (0, [at(f, n) for f in drawn for n, l in enumerate(f.read_text().splitlines(), 1)
                                             if len(l) > COLUMNS]),
        "comments with who, whoever, behind": (0, lines(every, r"//.*\b([Ww]ho|[Ww]hoever|[Bb]ehind)\b", same)),
    }
    return {key: (value or len(places), places) for key, (value, places) in out.items()}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--check", action="store_true", help="fail if a measure is above its limit")
    p.add_argument("--where", action="store_true", help="also list the places")
    args = p.parse_args()
    worse = []
    for key, (value, places) in measures().items():
        limit = LIMITS.get(key)
        if not args.check:
            print(f"{key:<36}{value:>8}" + (f"   at most {limit}" if limit is not None else ""))
        if args.where:
            print(*(f"    {place}" for place in places), sep="\n")
        if limit is not None and value > limit:
            worse.append(f"{key}: {value}, at most {limit} (scripts/shape.py --where)")
    for line in worse:
        print(f"shape: {line}", file=sys.stderr)
    sys.exit(bool(worse))


if __name__ == "__main__":
    main()
