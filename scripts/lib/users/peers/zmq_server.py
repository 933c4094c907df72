import sys

import zmq

from prelude import HOST, blocks, digest


def serve(context):
    pull, publish, reply = (context.socket(kind) for kind in (zmq.PULL, zmq.XPUB, zmq.REP))
    publish.sndhwm = 0
    for n, socket in enumerate((pull, publish, reply)):
        socket.bind(f"tcp://{HOST}:{sys.argv[1 + n]}")
    while (request := reply.recv_multipart())[0] != b"end":
        command, data = request
        if command == b"pull":
            data = digest(pull.recv() for _ in range(int(data))).encode()
        elif command == b"publish":
            publish.recv()    # the subscription
            for block in blocks(int(data), 8192):
                publish.send_multipart([b"topic", block])
        reply.send(data)
    reply.send(b"ended")


with zmq.Context() as context:
    serve(context)
