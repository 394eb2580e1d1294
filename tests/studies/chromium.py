"""A page in headless Chromium, by the DevTools protocol over a pipe: what it says, what it asks for, how it looks."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")


def installed() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One tab. Whatever the page says on its console, throws or asks the network for is kept in `events`."""

    def __init__(self, profile: Path) -> None:
        program = installed()
        assert program is not None
        to_browser, own_out = os.pipe()
        own_in, from_browser = os.pipe()

        def at_three_and_four() -> None:  # where Chromium looks for its pipe
            for source, place in ((os.dup(to_browser), 3), (os.dup(from_browser), 4)):
                os.dup2(source, place)

        flags = ("--headless", "--no-sandbox", "--disable-gpu-sandbox", "--hide-scrollbars", "--remote-debugging-pipe")
        more = ("--use-angle=swiftshader", "--enable-unsafe-swiftshader", f"--user-data-dir={profile}")
        self.process = subprocess.Popen(
            [program, *flags, *more, "about:blank"],
            preexec_fn=at_three_and_four,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._out, self._in = os.fdopen(own_out, "wb", 0), os.fdopen(own_in, "rb", 0)
        self._rest, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._out.close()
        self._in.close()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return dict(answer["result"])
            self.events.append(answer)

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._in.fileno(), 1 << 16)
            assert more, "Chromium ended"
            self._rest += more
        first, self._rest = self._rest.split(b"\0", 1)
        return dict(json.loads(first))

    def ask(self, expression: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def open(self, page: Path, width: int, height: int, *, dark: bool = False, phone: bool = False) -> None:
        """Load a page, in a window that is high enough for all of it to be drawn."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self._resize(width, height, phone)
        self.call("Page.navigate", url=page.resolve().as_uri())
        self.until("document.readyState === 'complete' && 'drawn' in document.documentElement.dataset")
        self._resize(width, int(self.ask("document.documentElement.scrollHeight")), phone)
        self.until("Number(document.documentElement.dataset.drawn) === document.querySelectorAll('.plot').length")
        self._resize(width, int(self.ask("document.documentElement.scrollHeight")), phone)
        self.ask("new Promise(done => setTimeout(done, 500))")

    def _resize(self, width: int, height: int, phone: bool) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def until(self, condition: str) -> None:
        for _ in range(600):
            if self.ask(condition):
                return
            time.sleep(0.1)
        raise AssertionError(f"waited in vain for {condition}")

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]))

    def complaints(self) -> list[str]:
        """Errors and warnings on the console, and exceptions."""
        found = []
        for event in self.events:
            kind, values = event.get("method"), event.get("params", {})
            if kind == "Runtime.exceptionThrown" or (
                kind == "Runtime.consoleAPICalled" and values["type"] in ("error", "warning", "assert")
            ):
                found.append(json.dumps(values)[:400])
            elif kind == "Log.entryAdded" and values["entry"]["level"] in ("error", "warning"):
                found.append(values["entry"]["text"])
        return [text for text in found if "willReadFrequently" not in text]  # advice to plotly, about speed

    def requests(self) -> list[str]:
        """What the page asked for beyond itself."""
        sent = [event["params"] for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        urls = [one["request"]["url"] for one in sent]
        return [url for url in urls if not url.startswith(("file:", "data:", "blob:", "about:"))]
