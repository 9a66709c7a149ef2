"""The colours of tokens: one hue from dark to light, which keeps its order in greyscale."""

from collections.abc import Sequence

COLOURS = ("#08306b", "#2171b5", "#6baed6", "#c6dbef", "#f7fbff")
EQUAL = 0.179  # relative luminance at which black and white text have the same contrast, 4.6


def shade(share: float, colours: Sequence[str] = COLOURS) -> str:
    """Return the colour (`#rrggbb`) at a position of a scale, from 0 (its first colour) to 1 (its last)."""
    at = max(0.0, min(1.0, share)) * (len(colours) - 1)
    i = min(len(colours) - 2, int(at))
    ends = zip(channels(colours[i]), channels(colours[i + 1]), strict=True)
    return "#" + "".join(f"{round(low + (high - low) * (at - i)):02x}" for low, high in ends)


def letters(ground: str) -> str:
    """Return black or white, whichever has the higher contrast on a background (WCAG 2.2), at least 4.5."""
    shares = [part / 255 for part in channels(ground)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares]
    luminance = sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return "#ffffff" if luminance < EQUAL else "#000000"


def channels(colour: str) -> list[int]:
    """Return red, green and blue (0 to 255) of a colour `#rrggbb`."""
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
