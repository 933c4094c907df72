import hashlib
from concurrent.futures import ThreadPoolExecutor

import grpc

from prelude import HOST, PORT, blocks, digest


def unary(request, context):
    return hashlib.sha256(request).digest() + request


def down(request, context):
    yield from blocks(int(request), 65536)


def up(requests, context):
    return digest(requests).encode()


def both(requests, context):
    yield from requests


server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.max_receive_message_length", -1)])
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Bytes", {
    "unary": grpc.unary_unary_rpc_method_handler(unary),
    "down": grpc.unary_stream_rpc_method_handler(down),
    "up": grpc.stream_unary_rpc_method_handler(up),
    "both": grpc.stream_stream_rpc_method_handler(both)}),))


server.add_insecure_port(f"{HOST}:{PORT}")
server.start()
server.wait_for_termination()
