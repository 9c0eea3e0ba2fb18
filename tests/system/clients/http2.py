"""The same as http2.go with Python's httpx, in threads."""

import concurrent.futures
import hashlib
import sys

import httpx


def get(url):
    reply = client.get(url)
    return f"{reply.http_version} {reply.status_code} {hashlib.sha256(reply.content).hexdigest()} {url}"


with httpx.Client(http1=False, http2=True, verify=False, timeout=60) as client, concurrent.futures.ThreadPoolExecutor(8) as pool:
    print(*pool.map(get, sys.argv[1:]), sep="\n")
