"""Same as http2.go with Python's httpx. It uses one thread, because httpx mixes up the streams of several on one connection."""

import asyncio
import hashlib
import sys

import httpx


async def get(client, url):
    reply = await client.get(url)
    return f"{reply.http_version} {reply.status_code} {hashlib.sha256(reply.content).hexdigest()} {url}"


async def main(urls):
    async with httpx.AsyncClient(http1=False, http2=True, verify=False, timeout=60) as client:
        print(*await asyncio.gather(*(get(client, url) for url in urls)), sep="\n")


asyncio.run(main(sys.argv[1:]))
