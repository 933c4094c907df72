"""Messages, remote calls and parallel programs, each with a client that people use."""

import os

import common
from programs.run import sha256
from .use import HOST, use

HTTP = os.path.join(common.ROOT, "scripts", "lib", "programs", "Http.java")


def peer(name):
    """A server or a client of ours."""
    return os.path.join(os.path.dirname(__file__), "peers", name)


def pair(run, server, client):
    """Runs a server and its client in Python: what the client prints is the result."""
    port = run.free_port()
    run.server(run.python, peer(server), str(port), port=port)
    run.asked(run.python, peer(client), str(port))


@use("gRPC", "Python: small and large calls, streams down, up and both ways", wheels=("grpcio",))
def grpc(run):
    pair(run, "grpc_server.py", "grpc_client.py")


@use("ZeroMQ", "REQ and REP, PUSH and PULL, PUB and SUB", wheels=("pyzmq",), least=0.7)
def zeromq(run):
    ports = [run.free_port() for _ in range(3)]
    words = [str(port) for port in ports]
    run.server(run.python, peer("zmq_server.py"), *words, port=ports[2], sig=None)
    run.asked(run.python, peer("zmq_client.py"), *words)


@use("websockets", "Python: small, middling and large messages there and back at once",
     wheels=("websockets",), least=0.7)
def websockets(run):
    pair(run, "websockets_server.py", "websockets_client.py")


@use("Twisted, aiohttp", "eight kept connections: small and large bodies up and down",
     wheels=("twisted", "aiohttp"), least=0.7)
def twisted(run):
    pair(run, "twisted_server.py", "aiohttp_client.py")


@use("NATS, nats-py", "requests from one client to another; the server is a Go program",
     ("nats-server:nats-server",), ("nats-py",))
def nats(run):
    port, ready = run.free_port(), f"{run.dir}/ready"
    run.server("nats-server", "-a", HOST, "-p", str(port), port=port)
    run.server(run.python, peer("nats_worker.py"), str(port), ready)
    run.says(ready)
    run.asked(run.python, peer("nats_client.py"), str(port))


@use("Dask distributed", "a scheduler, two workers: data scattered, computed, joined and gathered",
     wheels=("distributed",), least=0.6)
def dask(run):
    port, cli = run.free_port(), "distributed.cli.dask_"
    # All of them would leave files in /tmp.
    env = {"DASK_TEMPORARY_DIRECTORY": run.dir}
    run.server(run.python, "-m", f"{cli}scheduler", "--host", HOST, "--port", str(port),
               "--no-dashboard", "--no-show", port=port, cwd=run.dir, env=env)
    for _ in range(2):
        own = run.free_port()
        run.server(run.python, "-m", f"{cli}worker", f"tcp://{HOST}:{port}", "--host", HOST,
                   "--worker-port", str(own), "--nthreads", "1", "--no-nanny", "--no-dashboard",
                   port=own, cwd=run.dir, env=env)
    run.asked(run.python, peer("dask_client.py"), str(port), env=env)


@use("Tcl", "sockets and `fileevent`: four times 40 MB there and back at once", ("tclsh:tcl",),
     least=0.7)
def tcl(run):
    port, connections = run.free_port(), "4"
    # It ends with the last connection.
    run.server("tclsh", peer("tcl_server.tcl"), str(port), connections, port=port, sig=None)
    sent = run.file("sent", 40_000_000)
    run.asked("tclsh", peer("tcl_client.tcl"), str(port), connections, sent)


def epmd(run):
    """Starts the port mapper of Erlang: the environment that leads to it."""
    port = run.free_port()
    env = {"ERL_EPMD_PORT": str(port), "ERL_EPMD_ADDRESS": HOST, "HOME": run.dir}
    run.server("epmd", port=port, env=env)
    return env


@use("Erlang", "two nodes: messages small and large to a process of the other and back",
     ("erlc:erlang-base",), least=0.7)
def erlang(run):
    run.prepare("erlc", "-o", run.dir, peer("talk.erl"))
    env, port, ready = epmd(run), run.free_port(), f"{run.dir}/ready"
    node = ("erl", "-noinput", "-pa", run.dir, "-setcookie", "cookie", "-name")
    run.server(*node, f"serve@{HOST}", "-kernel", "inet_dist_listen_min", str(port),
               "inet_dist_listen_max", str(port), "-run", "talk", "serve", ready,
               port=port, env=env)
    run.says(ready)
    run.asked(*node, f"call@{HOST}", "-run", "talk", "call", f"serve@{HOST}", env=env)


def mpirun(run, *program):
    """Runs a program in four ranks that speak TCP: what it prints is the result."""
    run.asked("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "4",
              "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo",
              "--mca", "pml", "ob1", "--mca", "plm", "isolated", *program,
              env={"TMPDIR": run.dir, "HOME": run.dir})


@use("OpenMPI", "four ranks over `btl tcp`: a ring of small and large messages, allreduce",
     ("mpirun:openmpi-bin", "mpicc:libopenmpi-dev"), least=0.7)
def openmpi(run):
    run.prepare("mpicc", "-O2", "-o", f"{run.dir}/ring", peer("ring.c"))
    mpirun(run, f"{run.dir}/ring")


MOSQUITTO = '''
listener {} 127.0.0.1
allow_anonymous true
max_queued_messages 0
log_type subscribe
log_dest stderr
user root
'''


@use("Mosquitto", "16 messages of 5 MB, each published on a new connection, then 30,000 small ones",
     ("mosquitto:mosquitto", "mosquitto_pub:mosquitto-clients"), least=0.3)
def mosquitto(run):
    port, log, got = run.free_port(), f"{run.dir}/log", f"{run.dir}/got"
    run.server("mosquitto", "-c", run.write("conf", MOSQUITTO.format(port)), port=port, log=log)
    where = ("-h", HOST, "-p", str(port), "-q", "1", "-t")
    large = run.file("large", 5_000_000)
    small = run.write("small", (f"line {n * 7919}" for n in range(30000)))
    # All of a file as one message, or each of its lines.
    for topic, source, how, times, count in (("large", large, "-s", 16, 16),
                                             ("small", small, "-l", 1, 30000)):
        child = run.background("mosquitto_sub", *where, topic, "-N", "-C", str(count), stdout=got)
        run.says(log, topic)
        with run.timed():
            for _ in range(times):
                run.client("mosquitto_pub", *where, topic, how, stdin=source)
            run.ended(child)
        run.result(sha256(got))


@use("Gearman", "jobs of 256 KiB and many small ones, by the job server to a worker and back",
     ("gearmand:gearman-job-server", "gearman:gearman-tools"), least=0.2)
def gearman(run):
    port = run.free_port()
    run.server("gearmand", "--listen", HOST, "--port", str(port), "--log-file", "stderr", port=port)
    to = ("gearman", "-h", HOST, "-p", str(port), "-f")
    # Not `cat`: a worker reads nothing of its command before it has written the whole job to it.
    run.server(*to, "tac", "-w", "tac")
    large = run.file("large", 256 << 10)
    got = f"{run.dir}/got"
    for _ in range(8):
        run.asked(*to, "tac", stdin=large, stdout=got, got=got)
    run.asked(*to, "tac", "-n", data="".join(f"line {n}\n" for n in range(300)))


@use("mpi4py, OpenMPI", "four ranks: allreduce and sendrecv of arrays, allgather of objects",
     ("mpirun:openmpi-bin", "mpicc:libopenmpi-dev"), ("mpi4py",), least=0.7)
def mpi4py(run):
    mpirun(run, run.python, peer("mpi4py_ranks.py"))


@use("RabbitMQ, pika", "8,000 small messages and 40 of 1 MiB, published and consumed at once",
     ("/usr/lib/rabbitmq/bin/rabbitmq-server:rabbitmq-server",), ("pika",), least=0.7)
def rabbitmq(run):
    port, distribution = run.free_port(), run.free_port()
    env = {**epmd(run), "RABBITMQ_BASE": run.dir, "RABBITMQ_NODE_PORT": str(port),
           "RABBITMQ_NODE_IP_ADDRESS": HOST, "RABBITMQ_USE_LONGNAME": "true",
           "RABBITMQ_NODENAME": f"rabbit@{HOST}", "RABBITMQ_DIST_PORT": str(distribution),
           "RABBITMQ_MNESIA_BASE": f"{run.dir}/mnesia", "RABBITMQ_LOG_BASE": f"{run.dir}/log",
           "RABBITMQ_CONF_ENV_FILE": f"{run.dir}/none", "RABBITMQ_CONFIG_FILE": f"{run.dir}/none",
           "RABBITMQ_ENABLED_PLUGINS_FILE": f"{run.dir}/plugins"}
    run.server("/usr/lib/rabbitmq/bin/rabbitmq-server", port=port, limit=90, env=env)
    with run.timed():
        child = run.background(run.python, peer("pika_publisher.py"), str(port))
        run.result(run.client(run.python, peer("pika_consumer.py"), str(port)))
        run.ended(child)


@use("ZooKeeper, zkCli.sh", "1,000 nodes made, changed and read in one session",
     ("/usr/share/zookeeper/bin/zkCli.sh:zookeeper", "java:default-jre-headless"), least=0.7)
def zookeeper(run):
    port, log = run.free_port(), f"{run.dir}/log"
    jars = "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar"
    conf = run.write("zoo.cfg", f"dataDir={run.dir}\nclientPort={port}\n"
                     f"clientPortAddress={HOST}\nadmin.enableServer=false\n")
    run.server("java", "-cp", jars, "org.apache.zookeeper.server.quorum.QuorumPeerMain", conf,
               port=port, cwd=run.dir, log=log)
    # It listens, and closes what comes, before it serves.
    run.says(log, "checkIntervalMs")
    lines = [f"create /n{n} {'made' * 100}{n}\nset /n{n} {'set' * 300}{n}\nget /n{n}\n"
             for n in range(1000)]
    with run.timed():
        out = run.client("/usr/share/zookeeper/bin/zkCli.sh", "-server", f"{HOST}:{port}",
                         data="".join(lines) + "ls /\nquit\n", cwd=run.dir)
    run.result([line for line in out.splitlines() if "set" in line])


@use("Java", "HttpServer, HttpClient: 20 times 4 MB, then 8 bodies of 4 MB there and back at once",
     ("javac:default-jdk-headless",), least=0.6)
def java(run):
    run.prepare("javac", "-d", run.dir, HTTP)
    port, sent = run.free_port(), run.file("sent", 4_000_000)
    program, url = ("java", "-cp", run.dir, "Http"), f"http://{HOST}:{port}/sent"
    run.server(*program, "serve", HOST, str(port), run.dir, port=port)
    run.asked(*program, "get", url, sha256(sent), "20")
    run.asked(*program, "echo", url, "4000000", "8")
