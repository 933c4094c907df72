"""Other people's sources: got once from a distribution or a registry by its ordinary client, built once, kept in a cache.

The cache is $SLUICE_SUITES_CACHE, by default ${XDG_CACHE_HOME:-~/.cache}/sluice-suites; a suite's folder in it carries the
number of the recipe that built it. A new version at the source is not looked for: to get it, remove the folder.
"""

import fcntl
import glob
import os
import re
import shutil
import subprocess

import common

CACHE = os.environ.get("SLUICE_SUITES_CACHE") or os.path.join(
    os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "sluice-suites")


class Unavailable(Exception):
    """The suite cannot be had here: what was tried."""


def prepared(name, recipe, build):
    """(folder, version): what `build(folder)` made there, which says the version; built where that is not done yet."""
    folder = os.path.join(CACHE, f"{name}-{recipe}")
    ready = os.path.join(folder, "ready")
    os.makedirs(CACHE, exist_ok=True)
    with open(os.path.join(CACHE, "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(ready):
            print(f"{name}: gets and builds it, once", flush=True)
            shutil.rmtree(folder, ignore_errors=True)
            os.makedirs(folder)
            version = build(folder)
            with open(ready, "w") as f:
                f.write(version)
    with open(ready) as f:
        return folder, f.read()


def step(folder, *cmd, cwd=None, limit=1200, **env):
    """A step of getting or building, to its good end: what it printed."""
    log = os.path.join(folder, "log")
    with open(log, "ab") as out:
        begin = out.tell()
        out.write(f"$ {' '.join(cmd)}\n".encode())
        out.flush()
        try:
            done = subprocess.run(cmd, cwd=cwd or folder, env={**common.environment(False), **env}, stdin=subprocess.DEVNULL,
                                  stdout=out, stderr=subprocess.STDOUT, timeout=limit, preexec_fn=lambda: os.nice(10))
            status = done.returncode
        except (OSError, subprocess.TimeoutExpired) as e:
            out.write(f"{e}\n".encode())
            status = -1
    with open(log, "rb") as f:
        f.seek(begin)
        text = f.read().decode(errors="replace")
    if status != 0:
        raise Unavailable(f"`{' '.join(cmd)[:200]}` ended with {status}: {' / '.join(text.strip().splitlines()[-4:])}")
    return text


def make(folder, *args, cwd):
    step(folder, "make", f"-j{len(common.cpus())}", *args, cwd=cwd)


def _apt():
    """Options that make apt-get see sources of packages, where this machine's own lists name packages only; nothing of the
    machine's is changed."""
    apt = os.path.join(CACHE, "apt")
    for sub in ("parts", "lists/partial", "cache/archives/partial"):
        os.makedirs(os.path.join(apt, sub), exist_ok=True)
    listed = ["/etc/apt/sources.list", *glob.glob("/etc/apt/sources.list.d/*")]
    for n, path in enumerate(p for p in listed if p.endswith((".list", ".sources")) and os.path.exists(p)):
        with open(path) as f:
            text = f.read()
        text = re.sub(r"^deb\s", "deb-src ", text, flags=re.M)
        text = re.sub(r"^Types:.*$", "Types: deb-src", text, flags=re.M)
        with open(os.path.join(apt, "parts", f"{n}-{os.path.basename(path)}"), "w") as f:
            f.write(text)
    options = {"Dir::Etc::sourcelist": "/dev/null", "Dir::Etc::sourceparts": f"{apt}/parts", "Dir::State::Lists": f"{apt}/lists",
               "Dir::Cache": f"{apt}/cache", "APT::Sandbox::User": "", "Acquire::Retries": "3"}
    return ["apt-get", "-q", *(word for key, value in options.items() for word in ("-o", f"{key}={value}"))]


def debian_source(folder, package):
    """The source that Debian's package is made of, as its authors released it, in `folder`/source: Debian's version."""
    get = [*_apt(), "--only-source", "--download-only", "source", package]
    try:
        step(folder, *get)
    except Unavailable:
        step(folder, *_apt(), "update")
        step(folder, *get)
    description = glob.glob(f"{folder}/*.dsc")[0]
    step(folder, "dpkg-source", "--no-check", "--skip-patches", "-x", description, "source")
    with open(description) as f:
        return next(line.split()[1] for line in f if line.startswith("Version:"))


def debian_package(folder, package):
    """A package of Debian's, unpacked into `folder`/x and not installed: its version."""
    try:
        step(folder, "apt-get", "-q", "download", package)
    except Unavailable:
        step(folder, "apt-get", "-q", "update")
        step(folder, "apt-get", "-q", "download", package)
    path = glob.glob(f"{folder}/{package}_*.deb")[0]
    step(folder, "dpkg", "-x", path, f"{folder}/x")
    return os.path.basename(path).split("_")[1]


def environment_of_python(folder, python, *packages):
    """A virtual environment of this Python in `folder`/venv with these packages from the registry: its interpreter."""
    step(folder, python, "-m", "venv", "venv")
    own = f"{folder}/venv/bin/python"
    step(folder, own, "-m", "pip", "install", "-q", "--disable-pip-version-check", *packages)
    return own


def installed_version(folder, python, package):
    """Of a package in that environment."""
    return re.search(r"^Version: (\S+)", step(folder, python, "-m", "pip", "show", package), re.M).group(1)
