import grpc

from prelude import HOST, PORT, blocks, digest

with grpc.insecure_channel(f"{HOST}:{PORT}",
                           [("grpc.max_receive_message_length", -1)]) as channel:
    unary = channel.unary_unary("/Bytes/unary")
    print(digest(map(unary, blocks(1000, 1000))))
    print(digest(map(unary, blocks(16, 4 << 20))))
    print(digest(channel.unary_stream("/Bytes/down")(b"1000")))
    print(channel.stream_unary("/Bytes/up")(blocks(1000, 65536)))
    print(digest(channel.stream_stream("/Bytes/both")(blocks(1000, 30000))))
