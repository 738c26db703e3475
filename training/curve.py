"""Held-out perplexity through training as an SVG: usage: python -m training.curve LOG.jsonl OUT.svg"""

import json
import math
import sys
from pathlib import Path

WIDTH, HEIGHT, LEFT, BOTTOM = 640, 300, 46, 30
COLOURS = {"english": "#1f6fb4", "code": "#d1701b", "chinese": "#3a8f4b"}
TICKS = (8, 16, 32, 64, 128, 256, 512)


def draw(lines: list[dict], batch_tokens: int) -> str:
    """One line a domain over millions of tokens, on a logarithmic scale."""
    points = [e for e in lines if "perplexity" in e and "length" not in e]
    last = max(e["step"] for e in points) * batch_tokens / 1e6

    def x(step: int) -> float:
        return LEFT + step * batch_tokens / 1e6 / last * (WIDTH - LEFT - 110)

    def y(value: float) -> float:
        low, high = math.log(TICKS[0]), math.log(TICKS[-1] * 1.1)
        return HEIGHT - BOTTOM - (math.log(value) - low) / (high - low) * (HEIGHT - BOTTOM - 12)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for tick in TICKS:
        parts.append(f'<path d="M{LEFT} {y(tick):.1f}H{WIDTH - 110}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick}</text>')
    for millions in range(0, int(last) + 1, 20):
        at = x(round(millions * 1e6 / batch_tokens))
        parts.append(f'<text x="{at:.1f}" y="{HEIGHT - 12}" text-anchor="middle">{millions} M</text>')
    for domain, colour in COLOURS.items():
        course = [(x(e["step"]), y(e["perplexity"][domain])) for e in points]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in course)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        label = f"{domain} {points[-1]['perplexity'][domain]:.1f}"
        parts.append(
            f'<text x="{course[-1][0] + 6:.1f}" y="{course[-1][1] + 4:.1f}" fill="{colour}">{label}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    found = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    Path(sys.argv[2]).write_text(draw(found, 65_536))
