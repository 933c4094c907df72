import pika

from prelude import HOST, PORT, blocks

connection = pika.BlockingConnection(pika.ConnectionParameters(HOST, PORT))
channel = connection.channel()
for name, count, size in (("small", 8000, 2000), ("large", 40, 1 << 20)):
    channel.queue_declare(name)
    for block in blocks(count, size):
        channel.basic_publish("", name, block)
connection.close()
