"""A small client of WebDriver BiDi, which Firefox speaks itself: no driver is needed. w3.org/TR/webdriver-bidi"""
import json
import re
import shutil
import subprocess
import time

from browser import WRITTEN

FIREFOX = shutil.which("firefox-esr") or shutil.which("firefox")


class Firefox:
    def __init__(self, profile):
        from websockets.sync.client import connect
        self.process = subprocess.Popen([FIREFOX, "--headless", "--no-remote", "--profile", str(profile), "--remote-debugging-port", "0"],
                                        stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if found := re.search(r"WebDriver BiDi listening on (ws://\S+)", line):
                break
        else:
            raise RuntimeError("firefox did not start")
        self.socket, self.next = connect(found[1] + "/session", max_size=None).__enter__(), 0
        self.send("session.new", capabilities={})
        self.context = self.send("browsingContext.getTree")["contexts"][0]["context"]

    def send(self, method, **params):
        self.next += 1
        self.socket.send(json.dumps({"id": self.next, "method": method, "params": params}))
        while True:
            reply = json.loads(self.socket.recv(timeout=120))
            if reply.get("id") == self.next:
                if reply["type"] == "error":
                    raise RuntimeError(f"{method}: {reply['message']}")
                return reply["result"]

    def goto(self, url):
        self.send("browsingContext.navigate", context=self.context, url=url, wait="complete")

    def reload(self):
        self.evaluate(WRITTEN)
        self.send("browsingContext.reload", context=self.context, wait="complete")

    def evaluate(self, script):
        """The value of an expression, by JSON."""
        r = self.send("script.evaluate", expression=f"(async () => JSON.stringify(await ({script}) ?? null))()", target={"context": self.context}, awaitPromise=True)
        if r["type"] == "exception":
            raise RuntimeError(r["exceptionDetails"]["text"])
        return json.loads(r["result"]["value"])

    def wait(self, script, seconds=120):
        end = time.time() + seconds
        while not self.evaluate(f"Boolean({script})"):
            assert time.time() < end, f"it did not become true: {script}"
            time.sleep(0.1)

    def type(self, text):
        keys = [{"type": kind, "value": c} for c in text for kind in ("keyDown", "keyUp")]
        self.send("input.performActions", context=self.context, actions=[{"type": "key", "id": "keys", "actions": keys}])

    def close(self):
        self.process.kill()
        self.process.wait()
