"""Divides Fashion-MNIST by classes: "old" has all images of classes 0 to 4, "new" a few of classes 5 to 9.

    prepare.py [--few 20] [--from FOLDER] [--to FOLDER]

Writes {old,new}-{training,validation}-{images,labels}.idx. Labels count from 0 in both. The data comes with
`apt install dataset-fashion-mnist`.
"""
import argparse
import gzip
import struct
import sys
from pathlib import Path

PIXELS = 28 * 28


def read(folder, part):
    """Images as one block of bytes, and their labels."""
    files = [folder / f"{part}-{kind}.gz" for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")]
    for file in files:
        if not file.is_file():
            sys.exit(f"prepare.py: {file} is missing: apt install dataset-fashion-mnist, or --from FOLDER")
    images, labels = (gzip.decompress(file.read_bytes()) for file in files)
    return images[16:], labels[8:]


def write(folder, name, images, labels, classes, most):
    """The first `most` images of each class (None: all)."""
    chosen, counts = [], dict.fromkeys(classes, 0)
    for i, label in enumerate(labels):
        if label in counts and (most is None or counts[label] < most):
            counts[label] += 1
            chosen.append(i)
    pixels = b"".join(images[i * PIXELS:(i + 1) * PIXELS] for i in chosen)
    (folder / f"{name}-images.idx").write_bytes(struct.pack(">HBB3I", 0, 8, 3, len(chosen), 28, 28) + pixels)
    (folder / f"{name}-labels.idx").write_bytes(struct.pack(">HBBI", 0, 8, 1, len(chosen)) +
                                                bytes(labels[i] - classes[0] for i in chosen))
    print(f"{folder / name}: {len(chosen):,} images")


def main():
    here = Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description="Divide Fashion-MNIST by classes.")
    parser.add_argument("--few", type=int, default=20, help="training images of each new class")
    parser.add_argument("--from", dest="source", type=Path, default=Path("/usr/share/datasets/fashion-mnist"))
    parser.add_argument("--to", type=Path, default=here / "data")
    arguments = parser.parse_args()
    arguments.to.mkdir(parents=True, exist_ok=True)
    for use, part in (("training", "train"), ("validation", "t10k")):
        images, labels = read(arguments.source, part)
        write(arguments.to, f"old-{use}", images, labels, range(0, 5), None)
        write(arguments.to, f"new-{use}", images, labels, range(5, 10), arguments.few if use == "training" else None)


if __name__ == "__main__":
    main()
