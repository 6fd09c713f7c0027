"""Draws 200 pictures, and writes what torchvision makes of them: images.py FOLDER

FOLDER/NNN.jpg or .png   the pictures: subsamplings, orientations, grey, CMYK, progressive, palettes, 16 bits …
FOLDER/cases.txt         a line each: file, width, height, region (x y width height), size it is resized to (width height)
FOLDER/NNN.rgb           the whole picture as decode_image gives it, then the region resized: rows of RGB
FOLDER/colors.txt        a line each: function, factor, and in FOLDER/FUNCTION-FACTOR.rgb what it makes of 000.jpg
"""
import io
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms.v2 import functional

ORIENTATION = 0x112
COLORS = [(name, factor) for name in ("brightness", "contrast", "saturation") for factor in (0.0, 0.4, 1.0, 1.7)]
COLORS += [("hue", shift) for shift in (-0.5, -0.07, 0.3, 0.5)]
SUBSAMPLINGS = ("4:4:4", "4:2:2", "4:2:0", "4:1:1")


def draw(generator: np.random.Generator) -> Image.Image:
    """Waves, rectangles and some noise."""
    width, height = (int(generator.integers(1, most)) for most in (210, 170))
    y, x = np.mgrid[0:height, 0:width]
    pixels = 128 + generator.normal(0, 6, (height, width, 3))
    for channel in range(3):
        for _ in range(4):
            across, down, phase = generator.uniform(-0.15, 0.15), generator.uniform(-0.15, 0.15), generator.uniform(0, 6)
            pixels[..., channel] += 25 * np.sin(across * x + down * y + phase)
    for _ in range(4):
        left, top = generator.integers(0, width), generator.integers(0, height)
        height_of, width_of = generator.integers(5, 50, 2)
        pixels[top : top + height_of, left : left + width_of] = generator.integers(0, 255, 3)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def encode(picture: Image.Image, number: int, generator: np.random.Generator) -> tuple[str, bytes]:
    exif = Image.Exif()
    exif[ORIENTATION] = 1 + number // 10 % 8
    subsampling = SUBSAMPLINGS[number // 10 % 4]
    quality = int(generator.integers(40, 98))
    grey = picture.convert("L")
    kinds = (
        ("jpg", lambda: (picture, {"quality": quality, "subsampling": subsampling})),
        ("jpg", lambda: (picture, {"quality": quality, "subsampling": subsampling, "exif": exif})),
        ("jpg", lambda: (picture, {"quality": quality, "subsampling": subsampling, "progressive": True, "exif": exif})),
        ("jpg", lambda: (grey, {"quality": quality})),
        ("jpg", lambda: (picture.convert("CMYK"), {"quality": quality})),
        ("png", lambda: (picture, {"exif": exif})),
        ("png", lambda: (picture.convert("RGBA"), {})),
        ("png", lambda: (picture.convert("P", palette=Image.Palette.ADAPTIVE), {})),
        ("png", lambda: (Image.fromarray(np.asarray(grey).astype(np.uint16) * 257 ^ 123), {})),
        ("png", lambda: (grey.convert("1") if number % 20 < 10 else grey, {})),
    )
    suffix, options = kinds[number % len(kinds)]
    image, settings = options()
    file = io.BytesIO()
    image.save(file, "JPEG" if suffix == "jpg" else "PNG", **settings)
    return suffix, file.getvalue()


def main() -> None:
    folder = Path(sys.argv[1])
    generator = np.random.default_rng(31)
    cases, colors = [], []
    for number in range(200):
        suffix, data = encode(draw(generator), number, generator)
        whole = decode_image(torch.frombuffer(bytearray(data), dtype=torch.uint8), mode=ImageReadMode.RGB,
                             apply_exif_orientation=True)
        if whole.dtype == torch.uint16:
            whole = functional.to_dtype(whole, torch.uint8, scale=True)
        height, width = whole.shape[-2:]
        part_width, part_height = int(generator.integers(1, width + 1)), int(generator.integers(1, height + 1))
        x, y = int(generator.integers(0, width - part_width + 1)), int(generator.integers(0, height - part_height + 1))
        if number % 2 == 0:  # at most half of it
            to_width, to_height = (1 + int(side * generator.uniform(0.1, 0.45)) for side in (part_width, part_height))
        else:
            to_width, to_height = (int(side) for side in generator.integers(1, 120, 2))
        part = functional.resized_crop(whole, y, x, part_height, part_width, [to_height, to_width], antialias=True)
        name = f"{number:03}.{suffix}"
        for function, factor in COLORS if number == 0 else ():
            changed = getattr(functional, f"adjust_{function}")(whole, factor)
            (folder / f"{function}-{factor}.rgb").write_bytes(changed.permute(1, 2, 0).numpy().tobytes())
            colors.append(f"{function} {factor}\n")
        (folder / name).write_bytes(data)
        (folder / f"{number:03}.rgb").write_bytes(b"".join(image.permute(1, 2, 0).numpy().tobytes()
                                                           for image in (whole, part)))
        cases.append(f"{name} {width} {height} {x} {y} {part_width} {part_height} {to_width} {to_height}\n")
    (folder / "cases.txt").write_text("".join(cases))
    (folder / "colors.txt").write_text("".join(colors))


main()
