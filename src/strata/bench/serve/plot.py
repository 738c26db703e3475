"""A run as SVG: when each request waited and was answered, and the tokens of all of them over time."""

from collections.abc import Sequence
from html import escape
from typing import Any

WIDTH, LEFT, RIGHT = 960, 70, 20
_ROWS, _RATES = 360, 160  # pixels of the two parts
_TOP, _GAP = 60, 60
_WAIT, _DECODE = "#c9ced6", "#2a6f97"
_TICKS = 8


def plot(title: str, timeline: Sequence[dict[str, float]], windows: Sequence[dict[str, Any]]) -> str:
    """The SVG's text."""
    span = max([t["end"] for t in timeline] + [w["until_s"] for w in windows], default=1.0) or 1.0
    scale = (WIDTH - LEFT - RIGHT) / span
    below = _TOP + _ROWS + _GAP
    height = below + _RATES + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        _text(LEFT, 22, title, 'font-size="15"'),
        _text(LEFT, 44, "requests: grey until the first token, blue while the answer comes"),
        *_requests(timeline, scale),
        _text(LEFT, below - 12, "output tokens a second"),
        *_rates(windows, scale, below),
        *_axis(span, scale, below + _RATES),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _requests(timeline: Sequence[dict[str, float]], scale: float) -> list[str]:
    row = min(_ROWS / max(len(timeline), 1), 16.0)
    parts = []
    for i, t in enumerate(timeline):
        y, height = _TOP + i * row, max(row * 0.8, 0.3)
        for begin, end, colour in ((t["sent"], t["first"], _WAIT), (t["first"], t["end"], _DECODE)):
            parts.append(_box(LEFT + begin * scale, y, (end - begin) * scale, height, colour))
    return parts


def _rates(windows: Sequence[dict[str, Any]], scale: float, top: float) -> list[str]:
    most = max((w["output_tps"] for w in windows), default=0.0) or 1.0
    parts, begin = [_text(LEFT - 6, top + 10, f"{most:.0f}", 'text-anchor="end"')], 0.0
    for w in windows:
        height = w["output_tps"] / most * _RATES
        width = max((w["until_s"] - begin) * scale - 1, 0.5)
        parts.append(_box(LEFT + begin * scale, top + _RATES - height, width, height, _DECODE))
        begin = w["until_s"]
    return parts


def _axis(span: float, scale: float, y: float) -> list[str]:
    parts = [f'<line x1="{LEFT}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}" stroke="#555"/>']
    for i in range(_TICKS + 1):
        at = span * i / _TICKS
        parts.append(_text(LEFT + at * scale, y + 18, f"{at:.3g} s", 'text-anchor="middle"'))
    return parts


def _box(x: float, y: float, width: float, height: float, colour: str) -> str:
    return (
        f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(width, 0.2):.2f}" height="{height:.2f}" fill="{colour}"/>'
    )


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(text)}</text>'
