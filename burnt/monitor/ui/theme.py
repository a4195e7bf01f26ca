"""Themes, symbols and colours of run states, progress bars. States are not shown only by colour."""

from __future__ import annotations

from typing import Any

from textual.theme import Theme

from burnt.monitor.data.runs import RunView


def _make_theme(
    name: str, *, dim: str, faint: str, cursor: str, stale: str, bars: tuple[str, str], **colours: Any
) -> Theme:
    """Build a Textual theme: `dim` is secondary text, `faint` lines and borders, `bars` scrollbars."""
    scrollbar, hover = bars
    backgrounds = ("background", "background-hover", "background-active", "corner-color")
    return Theme(
        name=name,
        **colours,
        variables={
            "dim": dim,
            "faint": faint,
            "stale": stale,
            "cursor": cursor,
            "border": faint,
            "footer-background": colours["surface"],
            "footer-key-foreground": colours["primary"],
            "footer-description-foreground": dim,
            "block-cursor-foreground": colours["foreground"],
            "block-cursor-background": cursor,
            "input-selection-background": f"{colours['primary']} {35 if colours['dark'] else 25}%",
            "scrollbar": scrollbar,
            "scrollbar-hover": hover,
            "scrollbar-active": colours["primary"],
            **{f"scrollbar-{part}": colours["background"] for part in backgrounds},
        },
    )


# Blue, green and orange are from the Okabe-Ito palette, which is safe for colour-blind readers, adjusted in
# lightness to be readable on the background.
DARK = _make_theme(
    "burnt-dark",
    dark=True,
    primary="#5ab4e5",
    secondary="#8c9bb0",
    accent="#e69f00",
    success="#2fb892",
    warning="#e8a838",
    error="#f0714f",
    foreground="#d3d9e2",
    background="#0f1319",
    surface="#161b23",
    panel="#1f2630",
    dim="#8290a3",
    faint="#3a4554",
    stale="#c9a0e6",
    cursor="#24313f",
    bars=("#2b3542", "#3a4554"),
)
LIGHT = _make_theme(
    "burnt-light",
    dark=False,
    primary="#0067a6",
    secondary="#5c6b80",
    accent="#9a5b00",
    success="#00745a",
    warning="#925a00",
    error="#b93a0c",
    foreground="#1c232c",
    background="#fbfbf9",
    surface="#f1f2f0",
    panel="#e6e8e8",
    dim="#5f6b7a",
    faint="#c3cad2",
    stale="#7c3fa6",
    cursor="#dbe6ef",
    bars=("#c3cad2", "#a5aeb9"),
)
# For NO_COLOR: the terminal's default colours; emphasis is bold, reversed or dim.
PLAIN = Theme(
    name="burnt-plain",
    primary="ansi_default",
    secondary="ansi_default",
    accent="ansi_default",
    success="ansi_default",
    warning="ansi_default",
    error="ansi_default",
    foreground="ansi_default",
    background="ansi_default",
    surface="ansi_default",
    panel="ansi_default",
    ansi=True,
    boost="ansi_default",
    variables=dict.fromkeys(
        (
            *("dim", "faint", "stale", "cursor", "border", "border-blurred"),
            *("ansi-background", "ansi-foreground", "block-cursor-foreground", "block-cursor-background"),
            *("input-cursor-background", "input-cursor-foreground", "input-selection-background"),
            *("input-selection-foreground", "screen-selection-background", "screen-selection-foreground"),
            *("button-foreground", "button-color-foreground", "scrollbar", "scrollbar-hover"),
            *("scrollbar-active", "scrollbar-background", "scrollbar-background-hover"),
            *("scrollbar-background-active", "scrollbar-corner-color"),
        ),
        "ansi_default",
    )
    | {"input-cursor-text-style": "reverse", "block-cursor-text-style": "reverse"},
)

_STATES = {
    "running": ("●", "$primary"),
    "paused": ("‖", "$warning"),
    "finished": ("✓", "$success"),
    "stopped": ("■", "$warning"),
    "stopped early": ("✓", "$success"),
    "crashed": ("✗", "bold $error"),
    "stale": ("◌", "$stale"),
    "unreadable": ("!", "bold $error"),
    "deleted": ("-", "$dim"),
}


def state_cell(view: RunView) -> tuple[str, str]:
    """Return a run's state as symbol and word, and its style; a warning adds a mark."""
    symbol, style = _STATES[view.state_text]
    return (
        (f"{symbol} {view.state_text} !", "bold $error")
        if view.warning
        else (f"{symbol} {view.state_text}", style)
    )


def progress_bar(share: float, width: int) -> tuple[str, str]:
    """Return the done and remaining parts of a progress bar, at a resolution of half a cell.

    >>> progress_bar(0.5, 5)
    ('━━╸', '──')
    """
    half_cells = round(min(max(share, 0.0), 1.0) * width * 2)
    done = "━" * (half_cells // 2) + "╸" * (half_cells % 2)
    return done, "─" * (width - len(done))
