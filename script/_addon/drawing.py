"""Draws the app's pictures: a speech bubble with a voice in it."""

import struct
import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.uint8]
"""(height, width, 4): red, green, blue, opacity."""
_Mask = NDArray[Any]
"""(height, width): how much of each pixel is covered, 0 to 1."""

_SAMPLES: Final = 4
"""Points per pixel and axis: their mean makes smooth edges."""
_TOP: Final = np.array([98, 84, 232])
_BOTTOM: Final = np.array([25, 161, 214])
# Heights of the bars of a spoken word, as a share of the bubble's.
_VOICE: Final = (0.22, 0.42, 0.30, 0.62, 0.46, 0.24, 0.52, 0.34, 0.18)


def draw_icon(size: int = 128) -> Image:
    """Return the square icon."""
    x, y = _grid(size, size)
    bubble = _bubble(x / size, y / size)
    bars = _bars(x / size, y / size, _VOICE[1:8])
    return _paint(bubble, bars, y / size)


def draw_logo(width: int = 250, height: int = 100) -> Image:
    """Return the wide logo: the icon, and the voice that comes out of it."""
    x, y = _grid(width, height)
    u, v = x / height, y / height
    bubble = _bubble(u, v)
    inside = _bars(u, v, _VOICE[1:8])
    outside = _bars(u - 1.06, v, (*_VOICE, *_VOICE[:2]))
    return _paint(np.maximum(bubble, outside), inside, v)


def write_png(path: Path, image: Image) -> None:
    """Write an image as PNG."""
    height, width, _ = image.shape
    rows = b"".join(b"\0" + image[row].tobytes() for row in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")]
    content = b"\x89PNG\r\n\x1a\n"
    for kind, body in chunks:
        checksum = struct.pack(">I", zlib.crc32(kind + body))
        content += struct.pack(">I", len(body)) + kind + body + checksum
    path.write_bytes(content)


def read_png(path: Path) -> Image:
    """Return an image that :func:`write_png` wrote."""
    content = path.read_bytes()
    width, height = struct.unpack(">II", content[16:24])
    length = struct.unpack(">I", content[33:37])[0]
    rows = np.frombuffer(zlib.decompress(content[41 : 41 + length]), np.uint8)
    return rows.reshape(height, 1 + 4 * width)[:, 1:].reshape(height, width, 4)


def _grid(width: int, height: int) -> tuple[_Mask, _Mask]:
    """Return the coordinates of the points in every pixel, (height * n, width * n) each."""
    steps = [(np.arange(length * _SAMPLES) + 0.5) / _SAMPLES for length in (width, height)]
    x, y = np.meshgrid(*steps)
    return x, y


def _bubble(x: _Mask, y: _Mask) -> _Mask:
    body = _rounded(x, y, (0.5, 0.44), (0.46, 0.38), 0.16)
    # The tail is the triangle below the left half.
    tail = (y > 0.75) & (y < 0.97) & (x > 0.20) & (x < 0.20 + (0.97 - y) * 1.15)
    return np.asarray(np.maximum(body, tail))


def _bars(x: _Mask, y: _Mask, heights: tuple[float, ...]) -> _Mask:
    found = np.zeros_like(x)
    for index, height in enumerate(heights):
        center = (0.5 + (index - 3) * 0.105, 0.44)
        found = np.maximum(found, _rounded(x, y, center, (0.03, height / 2 + 0.03), 0.03))
    return found


def _rounded(
    x: _Mask, y: _Mask, center: tuple[float, float], half: tuple[float, float], radius: float
) -> _Mask:
    across = np.maximum(np.abs(x - center[0]) - half[0] + radius, 0)
    down = np.maximum(np.abs(y - center[1]) - half[1] + radius, 0)
    return np.asarray(np.hypot(across, down) <= radius, np.float64)


def _paint(colored: _Mask, white: _Mask, down: _Mask) -> Image:
    share = np.clip(down, 0, 1)[..., None]
    color = _TOP * (1 - share) + _BOTTOM * share
    color = np.where(white[..., None] > 0, 255, color)
    opacity = np.maximum(colored, white)[..., None]
    height, width = down.shape[0] // _SAMPLES, down.shape[1] // _SAMPLES

    def shrink(values: NDArray[Any]) -> NDArray[Any]:
        blocks = values.reshape(height, _SAMPLES, width, _SAMPLES, -1)
        return np.asarray(blocks.mean(axis=(1, 3)))

    covered = shrink(opacity)
    mixed = shrink(color * opacity) / np.maximum(covered, 1e-9)
    return np.concatenate([mixed, covered * 255], axis=2).round().astype(np.uint8)
