"""Draws a data set of pictures: draw_pictures.py FOLDER [--train 2000] [--val 400] [--size 256]

FOLDER/train/CLASS/NNNNN.jpg and FOLDER/val/CLASS/NNNNN.jpg: ten classes of shapes in any colour, place, size and
direction before a noisy background. Needs Pillow and numpy.
"""
from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

CLASSES = ("arrow", "bars", "checks", "circle", "cross", "hexagon", "ring", "square", "star", "triangle")


def polygon(corners: int, inner: float = 1.0) -> list[tuple[float, float]]:
    """Corners of a polygon around 0 of radius 1; every second one at radius `inner`."""
    count = corners if inner == 1.0 else 2 * corners
    return [(math.sin(2 * math.pi * i / count) * (1.0 if i % 2 == 0 else inner),
             -math.cos(2 * math.pi * i / count) * (1.0 if i % 2 == 0 else inner)) for i in range(count)]


OUTLINES = {
    "arrow": [(0, -1), (0.8, 0), (0.3, 0), (0.3, 1), (-0.3, 1), (-0.3, 0), (-0.8, 0)],
    "cross": [(-0.3, -1), (0.3, -1), (0.3, -0.3), (1, -0.3), (1, 0.3), (0.3, 0.3), (0.3, 1), (-0.3, 1), (-0.3, 0.3),
              (-1, 0.3), (-1, -0.3), (-0.3, -0.3)],
    "hexagon": polygon(6),
    "square": polygon(4),
    "star": polygon(5, 0.4),
    "triangle": polygon(3),
}


def draw(name: str, side: int, random: np.random.Generator) -> Image.Image:
    width, height = side, int(side * random.uniform(0.7, 1.1))
    low = random.integers(0, 256, (8, 8, 3)).astype(np.uint8)
    background = np.asarray(Image.fromarray(low).resize((width, height), Image.Resampling.BICUBIC)).astype(np.float32)
    background = 0.5 * background + 60 + random.normal(0, 10, (height, width, 3))
    picture = Image.fromarray(np.clip(background, 0, 255).astype(np.uint8))
    canvas = ImageDraw.Draw(picture)
    radius = random.uniform(0.2, 0.4) * min(width, height)
    x, y = random.uniform(radius, width - radius), random.uniform(radius, height - radius)
    turn = random.uniform(-0.4, 0.4)
    color = tuple(int(level) for level in random.integers(0, 256, 3))

    def place(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
        return [(x + radius * (px * math.cos(turn) - py * math.sin(turn)),
                 y + radius * (px * math.sin(turn) + py * math.cos(turn))) for px, py in points]

    box = (x - radius, y - radius, x + radius, y + radius)
    if name == "circle":
        canvas.ellipse(box, fill=color)
    elif name == "ring":
        canvas.ellipse(box, outline=color, width=max(2, int(radius * 0.3)))
    elif name == "bars":
        for left in (-1.0, -0.4, 0.2, 0.8):
            canvas.polygon(place([(left, -1), (left + 0.25, -1), (left + 0.25, 1), (left, 1)]), fill=color)
    elif name == "checks":
        for row in range(4):
            for column in range(row % 2, 4, 2):
                left, top = column / 2 - 1, row / 2 - 1
                right, bottom = left + 0.5, top + 0.5
                canvas.polygon(place([(left, top), (right, top), (right, bottom), (left, bottom)]), fill=color)
    else:
        canvas.polygon(place(OUTLINES[name]), fill=color)
    return picture


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", type=int, default=2000)
    parser.add_argument("--val", type=int, default=400)
    parser.add_argument("--size", type=int, default=256, help="the width in pixels")
    arguments = parser.parse_args()
    for split, count in (("train", arguments.train), ("val", arguments.val)):
        random = np.random.default_rng(0 if split == "train" else 1)
        for number in range(count):
            name = CLASSES[number % len(CLASSES)]
            folder = arguments.folder / split / name
            folder.mkdir(parents=True, exist_ok=True)
            draw(name, arguments.size, random).save(folder / f"{number:05}.jpg", quality=90)
    print(f"{arguments.folder}: {arguments.train} pictures to train with, {arguments.val} to validate with")


main()
