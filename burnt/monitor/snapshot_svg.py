"""`write_screenshot`: save what the app shows as an SVG file, without a terminal."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from burnt.errors import RunError
from burnt.monitor.app import MonitorApp
from burnt.monitor.data.runs import RunLibrary

_TIMEOUT_SECONDS = 30.0


def write_screenshot(
    library: RunLibrary, path: str | os.PathLike[str], size: tuple[int, int], keys: tuple[str, ...] = ()
) -> None:
    """Run the app headless, press keys, and save a screenshot; raises a RunError if that takes over 30 s."""
    app = MonitorApp(library)
    screenshots: list[str] = []

    async def draw(pilot: Pilot[Any]) -> None:
        await app.wait_until_idle(_TIMEOUT_SECONDS)
        for key in keys:
            await pilot.press(key)
            await app.wait_until_idle(_TIMEOUT_SECONDS)
        screenshots.append(_without_font_downloads(app.export_screenshot(title="burnt monitor")))
        app.exit()

    app.run(headless=True, size=size, auto_pilot=draw)
    if not screenshots:
        raise RunError(
            "the screenshot was not drawn", where=str(path), hint="check that the disk with the runs responds"
        )
    try:
        Path(path).write_text(screenshots[0], encoding="utf-8")
    except OSError as error:
        raise RunError("the screenshot cannot be written", where=str(path), found=error.strerror) from error


def _without_font_downloads(svg: str) -> str:
    """Remove Textual's @font-face rules, which make browsers download a font."""
    return re.sub(r"\s*@font-face\s*\{.*?\}", "", svg, flags=re.DOTALL)
