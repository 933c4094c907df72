import asyncio
import hashlib

import websockets

from prelude import HOST, PORT, blocks


async def talk(count, size):
    async with websockets.connect(f"ws://{HOST}:{PORT}", max_size=None, compression=None) as socket:
        h = hashlib.sha256()
        for block in blocks(count, size):
            await socket.send(block)
            h.update(await socket.recv())
        return h.hexdigest()


async def main():
    print(*await asyncio.gather(talk(3000, 1000), talk(1000, 30000), talk(60, 2 << 20)))


asyncio.run(main())
