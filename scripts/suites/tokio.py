"""The tests of tokio, an asynchronous runtime for Rust, that its release's sources bring: a unit is a test program."""

import glob
import json
import os
import re
import shutil

import fetch

CARGO = os.environ.get("CARGO", "cargo")
# Those that ask the kernel for something (the others are of memory and time), and can be built from the release alone.
KINDS = ("tcp_*", "uds_*", "udp", "unix_*", "net_*", "io_driver*", "io_async_fd", "process_*", "signal_*",
         "rt_basic", "rt_common", "rt_handle", "rt_threaded", "no_rt")
_LINE = re.compile(r"^test (\S+)(?: - should panic)? \.\.\. (ok|FAILED|ignored)", re.M)


class Tokio:
    name = "tokio"
    limit = 180
    tools = (CARGO,)

    def prepare(self):
        self.folder, version = fetch.prepared("tokio", 1, self._build)
        with open(f"{self.folder}/programs") as f:
            self.programs = json.load(f)
        return version

    def _build(self, folder):
        os.makedirs(f"{folder}/get/src")
        with open(f"{folder}/get/Cargo.toml", "w") as f:
            f.write('[package]\nname = "get"\nversion = "0.0.0"\n[dependencies]\ntokio = "1"\n')
        open(f"{folder}/get/src/lib.rs", "w").close()
        fetch.step(folder, CARGO, "vendor", "-q", "sources", cwd=f"{folder}/get")
        source = f"{folder}/source"
        shutil.copytree(f"{folder}/get/sources/tokio", source)
        shutil.rmtree(f"{folder}/get")
        with open(f"{source}/Cargo.toml", "a") as f:
            f.write("\n[workspace]\n")
        tests = sorted({os.path.basename(path)[:-3] for kind in KINDS for path in glob.glob(f"{source}/tests/{kind}.rs")})
        said = fetch.step(folder, CARGO, "test", "--no-run", "--message-format", "json", "--features", "full,test-util",
                          *(word for test in tests for word in ("--test", test)), cwd=source, CARGO_TARGET_DIR=f"{folder}/target")
        built = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        programs = {one["target"]["name"]: one["executable"] for one in built
                    if one.get("executable") and one["target"]["kind"] == ["test"]}
        with open(f"{folder}/programs", "w") as f:
            json.dump(programs, f)
        with open(f"{source}/Cargo.toml") as f:
            return re.search(r'^version = "(.*)"', f.read(), re.M).group(1)

    def units(self):
        return sorted(self.programs)

    def alone(self, _test):
        return True

    def command(self, unit, place, tests):
        return [self.programs[unit], *(["--exact", *tests] if tests else [])], f"{self.folder}/source", {}

    def results(self, unit, place, text):
        return {test: {"ok": "pass", "ignored": "skip"}.get(word, "fail") for test, word in _LINE.findall(text)}
