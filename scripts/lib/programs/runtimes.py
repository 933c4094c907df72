"""HTTP servers and clients of languages with an event loop or threads of their own: python, node, java."""

import os
import signal
import subprocess
import sys

import apps
import common
from common import Failure
from .run import CLIENTS, fail, sha256

HERE = os.path.dirname(os.path.abspath(__file__))


def python_http(run):
    place = f"{run.dir}/www"
    os.makedirs(place)
    big = run.scaled(128 << 20, 128 << 20)
    apps.random_file(f"{place}/big", big, run.seed)
    apps.random_file(f"{place}/small", 3000, run.seed + 1)
    port = run.free_port()
    child = common.start([sys.executable, "-m", "http.server", str(port), "--bind", run.address("server"), "--protocol", "HTTP/1.1",
                          "-d", place], env=run.env["server"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    # SIGINT: python leaves by its exit handlers.
    run.serve(child, lambda: common.end(child, signal.SIGINT) or fail("http.server did not end on SIGINT"))
    common.wait_listening(port, child)
    url = f"http://{run.address('server')}:{port}"
    run.client(sys.executable, CLIENTS, "urllib", f"{url}/small", sha256(f"{place}/small"), "20")
    run.client(sys.executable, CLIENTS, "urllib", f"{url}/big", sha256(f"{place}/big"), "2")
    run.client(sys.executable, CLIENTS, "keepalive", run.address("server"), str(port), "/small", sha256(f"{place}/small"), "100")
    run.payload += 2 * big
    if run.times > 1:
        run.client(sys.executable, CLIENTS, "keepalive", run.address("server"), str(port), "/big", sha256(f"{place}/big"), str(run.times))
        run.payload += run.times * big


def files_and_echo(run, serve, client, status=0):
    """A server of these words, {host} {port} {dir} in them; a client of these that gets a long file, and one that sends and
    receives at once on four connections."""
    place = f"{run.dir}/www"
    os.makedirs(place)
    big = 128 << 20
    apps.random_file(f"{place}/big", big, run.seed)
    port, host = run.free_port(), run.address("server")
    child = common.start([w.format(host=host, port=port, dir=place) for w in serve], env=run.env["server"],
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def stop():
        if not common.end(child):
            raise Failure(f"{serve[0]} did not end on SIGTERM")
        if child.returncode != status:
            raise Failure(f"{serve[0]}: status {child.returncode}")
    run.serve(child, stop)
    common.wait_listening(port, child, limit=30)
    url, times = f"http://{host}:{port}", 4 if run.times > 1 else 2
    run.client(*client, "get", f"{url}/big", sha256(f"{place}/big"), str(times))
    run.payload += times * big
    # These readers pause for longer than a ring lasts; TCP has what comes meanwhile.
    run.floor = 0.5
    run.client(*client, "echo", f"{url}/", str(8 << 20), "4")


def node_http(run):
    files_and_echo(run, ["node", f"{HERE}/http.js", "serve", "{host}", "{port}", "{dir}"], ["node", f"{HERE}/http.js"])


def node_cluster(run):
    """Connections that one process accepts and another serves."""
    files_and_echo(run, ["node", f"{HERE}/http.js", "serve", "{host}", "{port}", "{dir}", "2"], ["node", f"{HERE}/http.js"])


def java_http(run):
    """Threads that block, and a client with selectors."""
    classes = f"{run.dir}/classes"
    common.finished(["javac", "-d", classes, f"{HERE}/Http.java"], 60)
    java = ["java", "-cp", classes, "-Xmx512m", "Http"]
    # A Java program that SIGTERM ends says so.
    files_and_echo(run, [*java, "serve", "{host}", "{port}", "{dir}"], java, 128 + signal.SIGTERM)
