import asyncio

import nats

from prelude import HOST, PORT, blocks, digest


async def main():
    client = await nats.connect(f"nats://{HOST}:{PORT}")
    for count, size in ((2000, 1000), (300, 200000)):
        print(digest([(await client.request("work", b)).data for b in blocks(count, size)]))
    await client.close()


asyncio.run(main())
