"""A headless Chromium, driven by the DevTools protocol over pipes: no driver and no library is needed."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

CHROMIUM = shutil.which("chromium")
TIMEOUT_SECONDS = 60


class Browser:
    """with Browser(width, height) as browser: one page of that size. Calls raise what the browser answers as an
    error, or after a minute."""

    def __init__(self, width=1200, height=900, dark=False):
        self._size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._dark = dark
        self._last = 0
        self._unread = b""
        # [text] of console messages, exceptions and refusals of the security policy.
        self.complaints = []

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="baton-browser-")
        read_end, self._commands = os.pipe()
        self._answers, write_end = os.pipe()
        # The browser reads commands from descriptor 3 and answers on 4.
        script = f'exec "$@" 3<&{read_end} 4>&{write_end}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu",
             "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking", "--hide-scrollbars",
             f"--user-data-dir={self._folder.name}", "--remote-debugging-pipe"],
            pass_fds=(read_end, write_end), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(read_end)
        os.close(write_end)
        target = self._ask("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = self._ask("Target.attachToTarget", {"targetId": target, "flatten": True})
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._ask(domain + ".enable")
        self._ask("Emulation.setDeviceMetricsOverride", self._size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if self._dark else "light"}
        self._ask("Emulation.setEmulatedMedia", {"features": [scheme]})
        return self

    _session = None

    def __exit__(self, *_):
        os.close(self._commands)  # it ends with its last client
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._answers)
        self._folder.cleanup()

    def open(self, url):
        self._ask("Page.navigate", {"url": url})

    def evaluate(self, expression):
        """The value of a JavaScript expression in the page."""
        answer = self._ask("Runtime.evaluate", {"expression": expression, "returnByValue": True,
                                                "awaitPromise": True})
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def wait_for(self, expression):
        """Waits until the expression is true."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not self.evaluate(expression):
            if time.monotonic() > deadline:
                raise RuntimeError(f"not true within {TIMEOUT_SECONDS} s: {expression}")
            time.sleep(0.1)

    def screenshot(self, path):
        """Writes the whole page as PNG."""
        data = self._ask("Page.captureScreenshot", {"captureBeyondViewport": True})["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def _ask(self, method, params=None):
        self._last += 1
        message = {"id": self._last, "method": method, "params": params or {}}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            if answer.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
                self.complaints.append(json.dumps(answer["params"]))

    def _read(self):
        while b"\0" not in self._unread:
            if not select.select([self._answers], [], [], TIMEOUT_SECONDS)[0]:
                raise RuntimeError("the browser does not answer")
            data = os.read(self._answers, 1 << 20)
            if not data:
                raise RuntimeError("the browser has ended")
            self._unread += data
        message, _, self._unread = self._unread.partition(b"\0")
        return json.loads(message)
