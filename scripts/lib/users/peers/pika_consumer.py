import hashlib

import pika

from prelude import HOST, PORT

connection = pika.BlockingConnection(pika.ConnectionParameters(HOST, PORT))
channel = connection.channel()
channel.basic_qos(prefetch_count=100)
for name, count in (("small", 8000), ("large", 40)):
    channel.queue_declare(name)
    h = hashlib.sha256()
    for n, (method, _, body) in enumerate(channel.consume(name), 1):
        h.update(body)
        channel.basic_ack(method.delivery_tag)
        if n == count:
            break
    channel.cancel()
    print(name, h.hexdigest())
connection.close()
