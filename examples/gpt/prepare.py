"""Writes text as the two files that gpt.yaml reads: training.bin and validation.bin, each byte a token of 16 bits.

    prepare.py [TEXT ...] [--to FOLDER] [--validation 0.1]

Without TEXT it takes quotations of the package fortunes (apt install fortunes), 1.9 MB, in random order. The default
FOLDER is data/ beside this file.
"""
import argparse
import array
import random
import sys
from pathlib import Path

FORTUNES = Path("/usr/share/games/fortunes")
TOPICS = ("art computers cookie definitions education food fortunes law literature linux people platitudes riddles science "
          "songs-poems sports startrek tao wisdom work").split()


def quotations():
    """Each file has one after the other, with lines of a single % between them."""
    missing = [topic for topic in TOPICS if not (FORTUNES / topic).is_file()]
    if missing:
        sys.exit(f"prepare.py: {FORTUNES / missing[0]} is missing: apt install fortunes, or name files of text")
    found = [fortune for topic in TOPICS for fortune in (FORTUNES / topic).read_bytes().split(b"\n%\n") if fortune.strip()]
    random.Random(0).shuffle(found)
    return b"\n%\n".join(found).translate(None, b"\a\b")  # of terminals: bells, underlined letters


def write_tokens(text, path):
    tokens = array.array("H", list(text))
    if sys.byteorder == "big":
        tokens.byteswap()
    path.write_bytes(tokens.tobytes())
    print(f"{path}: {len(tokens):,} tokens")


def main():
    parser = argparse.ArgumentParser(description="Write text as files of byte tokens.")
    parser.add_argument("text", nargs="*", type=Path, help="files of text (default: the package fortunes)")
    parser.add_argument("--to", type=Path, default=Path(__file__).resolve().parent / "data", help="the folder to write to")
    parser.add_argument("--validation", type=float, default=0.1, help="the part at the end that is kept for validation")
    arguments = parser.parse_args()
    text = b"\n".join(path.read_bytes() for path in arguments.text) if arguments.text else quotations()
    end = round(len(text) * (1 - arguments.validation))
    arguments.to.mkdir(parents=True, exist_ok=True)
    write_tokens(text[:end], arguments.to / "training.bin")
    write_tokens(text[end:], arguments.to / "validation.bin")


if __name__ == "__main__":
    main()
