"""Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import sync_playwright

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

#: Milliseconds: far beyond the slowest page.
PATIENCE = 60_000


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser without a window. Skips the test without Chromium; fails in CI."""
    program = shutil.which("chromium")
    if program is None:
        reason = "no chromium on the PATH: run `make packages`"
        if os.environ.get("CAPCARD_REQUIRE_PACKAGES"):
            pytest.fail(reason)
        pytest.skip(reason)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


class Watched:
    """A page of a browser, with everything that must not happen on it."""

    def __init__(self, page: Page, url: str) -> None:
        self.page, self._url = page, url
        self.faults: list[str] = []
        page.set_default_timeout(PATIENCE)
        page.on("console", lambda message: self._note(message.type, message.text))
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("dialog", lambda dialog: self.faults.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: self._request(request.url))

    def _note(self, kind: str, text: str) -> None:
        if kind in {"error", "warning"}:
            self.faults.append(f"{kind}: {text}")

    def _request(self, url: str) -> None:
        if not url.startswith((self._url, "data:")):
            self.faults.append(f"request to {url}")

    def open(self, path: str) -> None:
        """Load a page of the server."""
        self.page.goto(self._url + path)


@contextmanager
def window(
    browser: Browser, url: str, *, width: int = 1400, theme: str = "light", scripts: bool = True
) -> Iterator[Watched]:
    """A window of some width in pixels, in a theme."""
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        color_scheme="dark" if theme == "dark" else "light",
        java_script_enabled=scripts,
        reduced_motion="reduce",
    )
    try:
        yield Watched(context.new_page(), url)
    finally:
        context.close()
