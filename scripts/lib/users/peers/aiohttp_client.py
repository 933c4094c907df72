import asyncio

import aiohttp

from prelude import HOST, PORT, blocks, digest

URL = f"http://{HOST}:{PORT}/"


async def post(session, block):
    async with session.post(URL, data=block) as answer:
        return await answer.read()


async def get(session, size):
    async with session.get(URL, params={"size": size}) as answer:
        return await answer.read()


async def main():
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=8)) as session:
        for count, size in ((400, 1000), (200, 50000), (12, 4 << 20)):
            print(digest(await asyncio.gather(*(post(session, b) for b in blocks(count, size)))))
        print(digest(await asyncio.gather(*(get(session, 1000000) for _ in range(50)))))


asyncio.run(main())
