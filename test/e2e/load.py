"""A load for a server: many streams and connections at once, some of them bad, some that leave. One thread, raw bytes."""
import asyncio
import concurrent.futures
import json
import random
import time

BAD = [b"GET / HTTP/1.1\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
       b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{\"prompt\"",
       b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100), b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
       b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n{\"prompt\": 42}"]


def request(path, body, close=False):
    data = json.dumps(body).encode()
    return (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{'Connection: close' if close else 'X-Load: 1'}\r\n"
            f"Content-Length: {len(data)}\r\n\r\n").encode() + data


def run_alone(coroutine):
    """asyncio.run in a thread of its own: a browser's test before may have left a loop in this one."""
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()


class Load:
    """What came of it: counts by kind, texts by prompt, seconds that replies of 429 took, tokens made."""

    def __init__(self, port, prompts, tokens, bad=0.05, leave=0.05, seed=1):
        self.port, self.prompts, self.tokens, self.bad, self.leave = port, prompts, tokens, bad, leave
        self.random = random.Random(seed)
        self.codes, self.texts, self.refused, self.made, self.left, self.broken = {}, {}, [], 0, 0, []

    async def one(self):
        if self.random.random() < self.bad:
            return await self.send_bad()
        prompt = self.random.choice(self.prompts)
        leave = self.random.random() < self.leave
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            start = time.monotonic()
            writer.write(request("/v1/completions", {"prompt": prompt, "max_tokens": self.tokens, "temperature": 0, "stream": True}, close=True))
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            code = int(head.split()[1])
            self.codes[code] = self.codes.get(code, 0) + 1
            if code != 200:
                await reader.read()
                if code == 429:
                    self.refused.append(time.monotonic() - start)
                return
            await self.stream(reader, prompt, leave)
        except (ConnectionError, asyncio.IncompleteReadError) as e:
            self.broken.append(repr(e))
        finally:
            writer.close()

    async def stream(self, reader, prompt, leave):
        text, events = "", 0
        async for line in reader:
            if not line.startswith(b"data: "):
                continue
            if line.startswith(b"data: [DONE]"):
                self.texts.setdefault(prompt, set()).add(text)
                return
            event = json.loads(line[6:])
            if "error" in event:
                self.broken.append(event["error"]["message"])
                return
            text += event["choices"][0]["text"] if event["choices"] else ""
            events += 1
            self.made += 1
            if leave and events == 3:
                self.left += 1
                return
        self.broken.append("a stream ended without [DONE]")

    async def send_bad(self):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(self.random.choice(BAD))
            head = await asyncio.wait_for(reader.read(64), 60)
            code = int(head.split()[1]) if head.startswith(b"HTTP/1.1 ") else 0
            self.codes[code] = self.codes.get(code, 0) + 1
        except (ConnectionError, asyncio.TimeoutError):
            self.codes[0] = self.codes.get(0, 0) + 1
        finally:
            writer.close()

    async def run(self, streams, seconds, idle=0):
        """So many clients, one request after another each; and so many connections that rest, one request a while."""
        end = time.monotonic() + seconds

        async def client():
            while time.monotonic() < end:
                await self.one()

        await asyncio.gather(*(client() for _ in range(streams)), *(self.rest(end) for _ in range(idle)))

    async def arrive(self, rate, seconds):
        """So many requests a second, whether those before are answered or not."""
        start, tasks = time.monotonic(), []
        while (passed := time.monotonic() - start) < seconds:
            while len(tasks) < rate * passed:
                tasks.append(asyncio.create_task(self.one()))
            await asyncio.sleep(0.005)
        await asyncio.gather(*tasks)

    async def rest(self, end):
        while time.monotonic() < end:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            try:
                while time.monotonic() < end:
                    writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    await reader.readuntil(b'"ok"}')
                    await asyncio.sleep(min(20 + 20 * self.random.random(), max(0.1, end - time.monotonic())))
            except (ConnectionError, asyncio.IncompleteReadError):
                self.broken.append("a connection that rested was lost")
            finally:
                writer.close()
