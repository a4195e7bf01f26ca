"""Using the app in tests: keys in, what is on the screen out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from burnt.monitor.app import MonitorApp
from burnt.monitor.data.runs import RunLibrary

PATIENCE = 30.0


@asynccontextmanager
async def opened(
    folder: Path, size: tuple[int, int] = (120, 40), **options: Any
) -> AsyncIterator[tuple[MonitorApp, Pilot[None]]]:
    """Open the app on a folder, and wait for the first picture."""
    app = MonitorApp(RunLibrary([folder]), fps=20, **options)
    async with app.run_test(size=size) as pilot:
        await app.wait_until_idle(PATIENCE)
        yield app, pilot


async def press(app: MonitorApp, pilot: Pilot[None], *keys: str) -> None:
    """Press keys, and wait until what they asked for is on the screen."""
    await pilot.press(*keys)
    await app.wait_until_idle(PATIENCE)


async def until(app: MonitorApp, condition: Callable[[], bool]) -> None:
    """Wait until something has become true."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await app.wait_until_idle(PATIENCE)


def text_of(widget: Any) -> str:
    """Return what a widget shows, without styles."""
    return "\n".join(widget.render_line(y).text.rstrip() for y in range(widget.size.height))
