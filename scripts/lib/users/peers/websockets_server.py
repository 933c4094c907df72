import asyncio

import websockets

from prelude import HOST, PORT, until_told


async def echo(socket):
    async for message in socket:
        await socket.send(message)


async def main():
    async with websockets.serve(echo, HOST, PORT, max_size=None, compression=None):
        await until_told()


asyncio.run(main())
