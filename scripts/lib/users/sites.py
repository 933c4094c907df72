"""Web servers, application servers, proxies and caches, each with a client that people use."""

import os
import re
import signal

import apps
import common
from common import Failure
from programs.proxies import HAPROXY_CONF
from programs.run import sha256
from . import stores
from .use import HOST, use

HTTP_JS = os.path.join(common.ROOT, "scripts", "lib", "programs", "http.js")
CURL, AB = "curl:curl", "ab:apache2-utils"
NGINX, LIGHTTPD = "nginx:nginx", "lighttpd:lighttpd"
UWSGI_PYTHON = "/usr/lib/uwsgi/plugins/python3_plugin.so"
STREAM_MODULE = "/usr/lib/nginx/modules/ngx_stream_module.so"
FILES = {"k": 1024, "m": 1 << 20, "big": 48 << 20}


# --- clients ---

def fetch(run, *words):
    """Runs curl: what it gets is a result; `words` are its flags and the URL."""
    got = f"{run.dir}/got"
    run.asked("curl", "-sS", "--fail", "-o", got, *words, got=got)
    os.unlink(got)


def ab(run, url, count, *flags, connections=16):
    """Runs ab for `count` requests, and checks that each has a whole answer."""
    with run.timed():
        text = run.client("ab", "-q", *flags, "-n", str(count), "-c", str(connections), url)
    found = dict(re.findall(r"^(Complete requests|Failed requests|HTML transferred): +(\d+)", text,
                            re.M))
    counts = found["Complete requests"], found["Failed requests"]
    if counts != (str(count), "0") or "Non-2xx" in text:
        raise Failure(f"ab {url}: {text.strip()[-600:]}")
    run.result(found["HTML transferred"])


def answered(run, url):
    """Gets a first answer: a server that listens may not have started its workers."""
    run.client("curl", "-sS", "--fail", "-o", "/dev/null", f"{url}/k")


def load(run, url, kept, fresh, whole=2, connections=16):
    """Asks for small answers on kept and on fresh connections, and takes checksums of long ones."""
    ab(run, f"{url}/k", kept, "-k", connections=connections)
    ab(run, f"{url}/k", fresh, connections=connections)
    for name in ("k", "m"):
        fetch(run, f"{url}/{name}")
    for _ in range(whole):
        fetch(run, f"{url}/big")


def upload(run, url):
    """Sends a file; the checksum that the application answers with is a result."""
    fetch(run, "--data-binary", f"@{run.file('sent', 24 << 20)}", "-H", "Expect:",
          "-H", "Content-Type: application/octet-stream", url)


# --- servers ---

def site(run, files=None):
    """Makes a directory of files to be served: its path."""
    www = run.folder("www")
    for name, size in (files or FILES).items():
        run.file(f"www/{name}", size)
    return www


def nginx(run, files=None, **kw):
    """Starts nginx, with the given files: the server."""
    server = apps.Nginx(run.env["server"], files, workers=2, directory=f"{run.dir}/nginx", **kw)
    run.serve(server, server.stop)
    return server


def before(run, http, listen="", top=""):
    """Starts nginx with one more port in its http block, `http` with {port} in it: the port."""
    port = run.free_port()
    more = f"{http[0]} server {{ listen {HOST}:{port} {listen}; {http[1]} }}" if http else ""
    nginx(run, more=more, main=top.replace("PORT", str(port)))
    common.wait_listening(port)
    return port


def proxied(where):
    """Gives http's blocks for kept connections to `where`."""
    return (f"upstream back {{ server {where}; keepalive 16; }}",
            "client_max_body_size 0; location / { proxy_pass http://back; proxy_http_version 1.1;"
            " proxy_set_header Connection ''; }")


def lighttpd(run, files=None):
    """Starts lighttpd with the given files: its address."""
    port = run.free_port()
    path = run.write("lighttpd.conf", f"""
server.document-root = "{site(run, files)}"
server.bind = "{HOST}"
server.port = {port}
server.errorlog = "{run.dir}/lighttpd.log"
server.max-keep-alive-requests = 100000
mimetype.assign = ( "" => "application/octet-stream" )
""")
    # By SIGTERM its status tells whether a connection was still open: by SIGINT it waits for them.
    run.server("lighttpd", "-D", "-f", path, port=port, sig=signal.SIGINT)
    return f"{HOST}:{port}"


# --- files, proxies and caches ---

@use("nginx, curl", "one file of 8 MiB, then of 64 MiB, each on a new connection", (NGINX, CURL),
     least=0.6)
def nginx_curl(run):
    server = nginx(run, {"mid": 8 << 20, "big": 64 << 20})
    for name in ("mid", "big"):
        fetch(run, server.url(name))


@use("nginx before lighttpd", "proxy_pass with kept connections; ab with 1 KiB, curl with 48 MiB",
     (NGINX, LIGHTTPD, CURL, AB), least=0.7)
def nginx_proxy(run):
    port = before(run, proxied(lighttpd(run)))
    load(run, f"http://{HOST}:{port}", 8000, 2000)


@use("nginx stream before lighttpd", "TCP passed on; ab with 1 KiB, curl with 48 MiB",
     (NGINX, f"{STREAM_MODULE}:libnginx-mod-stream", LIGHTTPD, CURL, AB), least=0.7)
def nginx_stream(run):
    top = (f"load_module {STREAM_MODULE}; stream {{ server {{ listen {HOST}:PORT;"
           f" proxy_pass {lighttpd(run)}; }} }}")
    port = before(run, None, top=top)
    load(run, f"http://{HOST}:{port}", 8000, 2000)


@use("haproxy before nginx", "http mode; ab with 1 KiB and 1 MiB, curl with 48 MiB",
     ("haproxy:haproxy", NGINX, CURL, AB), least=0.7)
def haproxy_nginx(run):
    back, port = nginx(run, FILES), run.free_port()
    path = run.write("haproxy.cfg", HAPROXY_CONF.format(
        dir=run.dir, host=HOST, port=port, back=f"{HOST}:{back.port}", mode="http", options=""))
    run.server("haproxy", "-db", "-f", path, port=port, sig=signal.SIGUSR1)
    ab(run, f"http://{HOST}:{port}/m", 400, "-k", connections=8)
    load(run, f"http://{HOST}:{port}", 8000, 2000)


@use("squid before nginx", "a forward proxy; ab with 1 KiB, curl with 48 MiB",
     ("squid:squid", NGINX, CURL, AB), least=0.7)
def squid(run):
    back, port = nginx(run, FILES), run.free_port()
    home = run.folder("squid", "proxy")
    path = run.write("squid.conf", f"""
http_port {HOST}:{port}
http_access allow all
pid_filename {home}/squid.pid
cache_log {home}/cache.log
access_log none
coredump_dir {home}
netdb_filename none
pinger_enable off
shutdown_lifetime 1 second
cache_mem 64 MB
""")
    run.server("squid", "-N", "-f", path, port=port)
    ab(run, back.url("k"), 3000, "-k", "-X", f"{HOST}:{port}")
    ab(run, back.url("k"), 1000, "-X", f"{HOST}:{port}")
    for name in ("k", "m", "big", "big"):
        fetch(run, "-x", f"http://{HOST}:{port}", back.url(name))


@use("Varnish before lighttpd", "a stored object of 20 MB, twelve times by curl; ab with 1 KiB",
     ("varnishd:varnish", "cc:gcc", LIGHTTPD, CURL, AB), least=0.1)
def varnish(run):
    back, port = lighttpd(run, {"k": 1024, "object": 20_000_000}), run.free_port()
    run.server("varnishd", "-F", "-j", "none", "-a", f"{HOST}:{port}", "-b", back, "-T", "none",
               "-n", f"{run.dir}/varnish", "-s", "malloc,128m", port=port)
    ab(run, f"http://{HOST}:{port}/k", 10000, "-k")
    for _ in range(12):
        fetch(run, f"http://{HOST}:{port}/object")


@use("Caddy before lighttpd", "a Go program, which stays on TCP; ab with 1 KiB, curl with 48 MiB",
     ("caddy:caddy", LIGHTTPD, CURL, AB))
def caddy(run):
    back, port = lighttpd(run), run.free_port()
    path = run.write("Caddyfile", f"""
{{
    admin off
    auto_https off
}}
http://{HOST}:{port} {{
    handle /own/* {{
        uri strip_prefix /own
        root * {run.dir}/www
        file_server
    }}
    reverse_proxy {back}
}}
""")
    home = {"XDG_CONFIG_HOME": run.dir, "XDG_DATA_HOME": run.dir, "HOME": run.dir}
    run.server("caddy", "run", "--config", path, "--adapter", "caddyfile", port=port, env=home)
    load(run, f"http://{HOST}:{port}", 1500, 500, whole=1)
    load(run, f"http://{HOST}:{port}/own", 1500, 500, whole=1)


# --- TLS ---

def certificate(run):
    """Makes a key and a certificate for this host: the directory's prefix of both."""
    tls = f"{run.dir}/tls"
    run.prepare("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj",
                "/CN=localhost", "-addext", f"subjectAltName=IP:{HOST},DNS:localhost",
                "-keyout", f"{tls}.key", "-out", f"{tls}.crt")
    return tls


@use("nginx, TLS and HTTP/2", "24 files of 4 MiB by curl --parallel, 48 MiB by wget",
     (NGINX, CURL, "wget:wget", "openssl:openssl"), least=0.7)
def nginx_h2(run):
    tls = certificate(run)
    www = site(run, {"big": 48 << 20, **{f"f{n}": (4 << 20) + n for n in range(1, 25)}})
    keys = f"ssl_certificate {tls}.crt; ssl_certificate_key {tls}.key;"
    port = before(run, (keys, f"root {www};"), listen="ssl http2")
    url = f"https://{HOST}:{port}"
    with run.timed():
        run.client("curl", "-sS", "--fail", "-Z", "--http2", "--cacert", f"{tls}.crt",
                   "-o", f"{run.dir}/got-#1", f"{url}/f[1-24]")
        run.client("wget", "-q", f"--ca-certificate={tls}.crt", "-O", f"{run.dir}/got-0",
                   f"{url}/big")
    run.result([sha256(f"{run.dir}/got-{n}") for n in range(25)])


@use("Two stunnels before Redis", "32 MB in and twice out by redis-cli through TLS",
     ("stunnel4:stunnel4", *stores.REDIS, "openssl:openssl"), least=0.5)
def stunnel(run):
    tls = certificate(run)
    inner, outer, got = run.free_port(), run.free_port(), f"{run.dir}/got"
    for name, accept, connect, more in (
            ("in", inner, stores.redis(run)[3], f"cert={tls}.crt\nkey={tls}.key"),
            ("out", outer, inner, f"client=yes\nCAfile={tls}.crt\nverify=2")):
        text = f"[redis]\naccept={HOST}:{accept}\nconnect={HOST}:{connect}\n{more}\n"
        path = run.write(f"stunnel-{name}.conf", f"foreground = quiet\npid =\n{text}")
        run.server("stunnel4", path, port=accept)
    cli = ("redis-cli", "-h", HOST, "-p", str(outer))
    run.asked(*cli, "-x", "set", "key", stdin=run.file("sent", 32_000_000))
    for _ in range(2):
        run.asked(*cli, "--raw", "get", "key", stdout=got, got=got)


# --- application servers ---

def answers(run, port, kept=2000, fresh=600, whole=2, connections=16, path=""):
    """Loads an application: it gives `path`/NAME, and answers what is sent with its checksum."""
    url = f"http://{HOST}:{port}{path}"
    answered(run, url)
    load(run, url, kept, fresh, whole, connections)
    upload(run, f"{url}/")


PHP = """<?php
if ($_SERVER['REQUEST_METHOD'] === 'POST') {
    echo hash('sha256', file_get_contents('php://input'));
} else {
    $file = __DIR__ . $_SERVER['QUERY_STRING'];
    header('Content-Length: ' . filesize($file));
    readfile($file);
}
"""

APACHE_CONF = """
ServerRoot {dir}
ServerName localhost
DefaultRuntimeDir {dir}
PidFile {dir}/apache.pid
ErrorLog {dir}/apache.log
Listen {host}:{port}
{modules}
User www-data
Group www-data
DocumentRoot {dir}/www
MaxKeepAliveRequests 0
<Directory {dir}/www>
    Require all granted
</Directory>
<FilesMatch \\.php$>
    SetHandler "proxy:fcgi://{host}:{fpm}"
</FilesMatch>
"""

FPM_CONF = """
[global]
error_log = {dir}/fpm.log
[www]
listen = {host}:{fpm}
user = www-data
group = www-data
pm = static
pm.max_children = 4
php_admin_value[post_max_size] = 0
"""


@use("Apache (event) and php-fpm", "files, a script; ab with 1 KiB, curl with 48 MiB, 24 MiB sent",
     ("apache2:apache2-bin", "php-fpm8.2:php8.2-fpm", CURL, AB), least=0.3)
def apache_fpm(run):
    port, fpm = run.free_port(), run.free_port()
    site(run)
    run.write("www/app.php", PHP)
    modules = "\n".join(f"LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so"
                        for name in ("mpm_event", "authz_core", "proxy", "proxy_fcgi"))
    words = {"dir": run.dir, "host": HOST, "port": port, "fpm": fpm, "modules": modules}
    php = run.write("fpm.conf", FPM_CONF.format(**words))
    run.server("php-fpm8.2", "-F", "-y", php, port=fpm, sig=signal.SIGQUIT)
    path = run.write("apache.conf", APACHE_CONF.format(**words))
    run.server("apache2", "-D", "FOREGROUND", "-f", path, port=port)
    load(run, f"http://{HOST}:{port}", 4000, 1000, whole=1)
    answers(run, port, whole=1, path="/app.php?")


@use("php -S", "a script, a connection for each request; ab, curl with 48 MiB, 24 MiB sent",
     ("php8.2:php8.2-cli", CURL, AB), least=0.6)
def php_s(run):
    port, www = run.free_port(), site(run)
    run.write("www/app.php", PHP)
    run.server("php8.2", "-d", "post_max_size=0", "-S", f"{HOST}:{port}", "-t", www, port=port,
               sig=signal.SIGINT)
    answers(run, port, path="/app.php?")


FLASK = """
import hashlib, os
import flask
app = flask.Flask(__name__)

@app.get("/<name>")
def get(name):
    return flask.send_from_directory(os.environ["SITE"], name)

@app.post("/")
def post():
    digest = hashlib.sha256()
    while piece := flask.request.stream.read(1 << 16):
        digest.update(piece)
    return digest.hexdigest()
"""
FLASK_NEEDS = ("/usr/lib/python3/dist-packages/flask:python3-flask", NGINX, CURL, AB)


def flask(run):
    """Writes the application: what its server's environment is to say."""
    run.write("shop.py", FLASK)
    return {"SITE": site(run), "PYTHONPATH": run.dir, "PYTHONDONTWRITEBYTECODE": "1"}


@use("nginx, gunicorn (gthread), Flask",
     "HTTP by proxy_pass; ab with 1 KiB, curl with 48 MiB, 24 MiB sent",
     ("gunicorn:gunicorn", *FLASK_NEEDS), least=0.7)
def gunicorn(run):
    port = run.free_port()
    run.server("gunicorn", "-k", "gthread", "-w", "2", "--threads", "8", "-b", f"{HOST}:{port}",
               "--worker-tmp-dir", run.dir, "shop:app", port=port, env=flask(run), cwd=run.dir)
    answers(run, before(run, proxied(f"{HOST}:{port}")))


@use("nginx, uWSGI, Flask",
     "its own protocol and HTTP; ab with 1 KiB, curl with 48 MiB, 24 MiB sent",
     ("uwsgi:uwsgi-core", f"{UWSGI_PYTHON}:uwsgi-plugin-python3", *FLASK_NEEDS), least=0.6)
def uwsgi(run):
    own, http = run.free_port(), run.free_port()
    run.server("uwsgi", "--plugin", "python3", "--master", "--die-on-term", "--processes", "2",
               "--threads", "4", "--socket", f"{HOST}:{own}", "--http-socket", f"{HOST}:{http}",
               "--module", "shop:app", "--need-app", port=http, env=flask(run), cwd=run.dir)
    port = before(run, ("client_max_body_size 0;", f"""
        location / {{ include /etc/nginx/uwsgi_params; uwsgi_pass {HOST}:{own}; }}
        location /http/ {{ proxy_pass http://{HOST}:{http}/; }}
    """))
    answers(run, port, 1000, 300, whole=1)
    answers(run, port, 1000, 300, whole=1, path="/http")


STARMAN = """
use Digest::SHA;
sub {
    my $env = shift;
    if ($env->{REQUEST_METHOD} eq 'POST') {
        my $sum = Digest::SHA->new(256)->addfile($env->{'psgi.input'})->hexdigest;
        return [200, ['Content-Length' => length $sum], [$sum]];
    }
    open my $file, '<:raw', "$ENV{SITE}$env->{PATH_INFO}" or die;
    return [200, ['Content-Length' => -s $file], $file];
};
"""


@use("Starman", "a PSGI application; ab with 1 KiB, curl with 48 MiB, 24 MiB sent",
     ("starman:starman", CURL, AB), least=0.5)
def starman(run):
    port = run.free_port()
    run.server("starman", "--listen", f"{HOST}:{port}", "--workers", "4",
               "--max-requests", "100000", "--keepalive-timeout", "10", "--env", "deployment",
               run.write("app.psgi", STARMAN), port=port, env={"SITE": site(run)})
    # Each of its processes serves one connection until that ends.
    answers(run, port, kept=6000, fresh=1500, connections=4)


PUMA = """
require 'digest'
run(lambda do |env|
  if env['REQUEST_METHOD'] == 'POST'
    sum = Digest::SHA256.new
    while (piece = env['rack.input'].read(65536))
      sum << piece
    end
    [200, { 'Content-Length' => '64' }, [sum.hexdigest]]
  else
    path = ENV['SITE'] + env['PATH_INFO']
    [200, { 'Content-Length' => File.size(path).to_s }, File.open(path, 'rb')]
  end
end)
"""


@use("Puma", "a Rack application, two workers; ab with 1 KiB, curl with 48 MiB, 24 MiB sent",
     ("puma:puma", CURL, AB), least=0.6)
def puma(run):
    port = run.free_port()
    run.server("puma", "-C", "-", "-e", "production", "-w", "2", "-t", "4:4",
               "-b", f"tcp://{HOST}:{port}", run.write("config.ru", PUMA), port=port,
               env={"SITE": site(run)}, cwd=run.dir)
    answers(run, port, whole=1)


UVICORN = """
import hashlib, os

async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    digest, more = hashlib.sha256(), scope["method"] == "POST"
    while more:
        event = await receive()
        digest.update(event.get("body", b""))
        more = event.get("more_body", False)
    start = {"type": "http.response.start", "status": 200}
    if scope["method"] == "POST":
        await send({**start, "headers": []})
        await send({"type": "http.response.body", "body": digest.hexdigest().encode()})
        return
    path = os.environ["SITE"] + scope["path"]
    await send({**start, "headers": [(b"content-length", str(os.path.getsize(path)).encode())]})
    with open(path, "rb") as f:
        while piece := f.read(1 << 16):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
"""

HTTPX = """
import asyncio, hashlib, os, sys
import httpx

async def get(client, name, times):
    digest = hashlib.sha256()
    for _ in range(times):
        async with client.stream("GET", f"/{name}") as answer:
            answer.raise_for_status()
            async for piece in answer.aiter_bytes():
                digest.update(piece)
    return digest.hexdigest()

async def post(client, path):
    with open(path, "rb") as f:
        answer = await client.post("/", content=f.read())
    return answer.text

async def main(url, path):
    limits = httpx.Limits(max_connections=8)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=60) as client:
        print(*await asyncio.gather(*[get(client, "k", 60) for _ in range(8)]))
        print(*await asyncio.gather(*[get(client, "big", 1) for _ in range(3)]))
        print(*await asyncio.gather(*[post(client, path) for _ in range(3)]))

asyncio.run(main(*sys.argv[1:]))
"""


@use("uvicorn and httpx", "an ASGI application; 480 times 1 KiB, 3 times 48 MiB, 72 MiB sent",
     wheels=("uvicorn", "httpx"), least=0.8)
def uvicorn(run):
    port = run.free_port()
    run.write("shop.py", UVICORN)
    run.server(run.python, "-m", "uvicorn", "--host", HOST, "--port", str(port), "--no-access-log",
               "shop:app", port=port, cwd=run.dir,
               env={"SITE": site(run), "PYTHONDONTWRITEBYTECODE": "1"})
    run.asked(run.python, "-c", HTTPX, f"http://{HOST}:{port}", run.file("sent", 24 << 20))


@use("node, http with cluster", "two workers; ab with 1 KiB, curl with 48 MiB both ways",
     ("node:nodejs", CURL, AB))
def node_cluster(run):
    port = run.free_port()
    run.server("node", HTTP_JS, "serve", HOST, str(port), site(run), "2", port=port)
    load(run, f"http://{HOST}:{port}", 3000, 800)
    fetch(run, "--data-binary", f"@{run.dir}/www/big", "-H", "Expect:", f"http://{HOST}:{port}")


NODE_NET = """
'use strict';
const net = require('net');
const crypto = require('crypto');
const fs = require('fs');
const [what, host, port, path, times] = process.argv.slice(1);
if (what === 'serve') {
  const server = net.createServer({ allowHalfOpen: true }, (socket) => socket.pipe(socket));
  server.listen(Number(port), host);
  process.on('SIGTERM', () => process.exit(0));
} else {
  for (let i = 0; i < Number(times); i++) {
    const socket = net.connect(Number(port), host);
    const sum = crypto.createHash('sha256');
    fs.createReadStream(path).pipe(socket);
    socket.on('data', (piece) => sum.update(piece));
    socket.on('end', () => console.log(sum.digest('hex')));
    socket.on('error', (e) => { console.error(e.message); process.exit(1); });
  }
}
"""


@use("node, net", "48 MiB there and back on four connections at once", ("node:nodejs",), least=0.7)
def node_net(run):
    port, sent = run.free_port(), run.file("sent", 48 << 20)
    run.server("node", "-e", NODE_NET, "serve", HOST, str(port), port=port)
    run.asked("node", "-e", NODE_NET, "send", HOST, str(port), sent, "4")


TOMCAT_SERVER = """<Server port="-1">
<Service name="Catalina">
  <Connector port="{port}" address="{host}" protocol="HTTP/1.1" maxKeepAliveRequests="-1"/>
  <Engine name="Catalina" defaultHost="localhost">
    <Host name="localhost" appBase="webapps" autoDeploy="false">
      <Context path="" docBase="{dir}/www"/>
    </Host>
  </Engine>
</Service>
</Server>
"""

TOMCAT_WEB = """<web-app version="6.0" xmlns="https://jakarta.ee/xml/ns/jakartaee">
  <servlet>
    <servlet-name>default</servlet-name>
    <servlet-class>org.apache.catalina.servlets.DefaultServlet</servlet-class>
  </servlet>
  <servlet-mapping>
    <servlet-name>default</servlet-name>
    <url-pattern>/</url-pattern>
  </servlet-mapping>
</web-app>
"""


@use("Tomcat", "its own servlet for files; ab with 1 KiB, curl with 48 MiB",
     ("/usr/share/tomcat10:tomcat10", "java:default-jdk-headless", CURL, AB), least=0.6)
def tomcat(run):
    port, base = run.free_port(), f"{run.dir}/tomcat"
    for place in ("conf", "logs", "temp", "webapps", "work"):
        run.folder(f"tomcat/{place}")
    site(run)
    run.write("tomcat/conf/server.xml", TOMCAT_SERVER.format(port=port, host=HOST, dir=run.dir))
    run.write("tomcat/conf/web.xml", TOMCAT_WEB)
    run.server("/usr/share/tomcat10/bin/catalina.sh", "run", port=port, limit=60,
               env={"CATALINA_BASE": base})
    answered(run, f"http://{HOST}:{port}")
    load(run, f"http://{HOST}:{port}", 3000, 800)


# --- downloads and load ---

@use("lighttpd, aria2c and wget", "192 MiB by aria2c on 16 connections, then by wget on one",
     (LIGHTTPD, "aria2c:aria2", "wget:wget"), least=0.4)
def aria2(run):
    url = f"http://{lighttpd(run, {'big': 192 << 20})}/big"
    with run.timed():
        run.client("aria2c", "-q", "--no-conf", "-x16", "-s16", "-k1M", "--file-allocation=none",
                   "-d", run.dir, "-o", "got-aria2", url)
        run.client("wget", "-q", "-O", f"{run.dir}/got-wget", url)
    run.result([sha256(f"{run.dir}/got-{name}") for name in ("aria2", "wget")])


@use("nginx, ab and wrk", "1 KiB 30,000 times, 1 MiB 500 times by ab, after a second of wrk",
     (NGINX, "wrk:wrk", AB), least=0.7)
def wrk(run):
    server = nginx(run, FILES)
    text = run.client("wrk", "-t2", "-c16", "-d1s", server.url("k"))
    if not apps.parse_wrk(text)[0]:
        raise Failure(f"wrk: {text}")
    ab(run, server.url("k"), 30000, "-k")
    ab(run, server.url("m"), 500, "-k", connections=8)
