import sys

import zmq

from prelude import HOST, blocks, digest


context = zmq.Context()
push, subscribe, request = (context.socket(kind) for kind in (zmq.PUSH, zmq.SUB, zmq.REQ))
subscribe.rcvhwm = 0
for n, socket in enumerate((push, subscribe, request)):
    socket.connect(f"tcp://{HOST}:{sys.argv[1 + n]}")


subscribe.subscribe(b"topic")


def ask(command, data):
    request.send_multipart([command, data])
    return request.recv()


print(digest(ask(b"echo", block) for block in blocks(4000, 2000)))
request.send_multipart([b"pull", b"20000"])
for block in blocks(20000, 8192):
    push.send(block)


print(request.recv())
print(ask(b"publish", b"20000"))
print(digest(subscribe.recv_multipart()[1] for _ in range(20000)))
print(ask(b"end", b""))
