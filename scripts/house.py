#!/usr/bin/env python3
"""How big the product is and how it is divided: numbers of the sources, before and after a change.

  scripts/house.py                        the numbers of this checkout
  scripts/house.py --against REVISION     those of a revision of git beside them, and the differences
  scripts/house.py --build build/release  also: the libraries that an example's process loads (ldd)
  scripts/house.py --twice                also: each pair of places that share lines
  scripts/house.py --json                 the numbers as JSON

The product is the C++ and Python that is installed: PRODUCT without tests and without the parts of others. A header's
users are the product files that include it, besides its own source. A pair of places shares lines where at least
SHARED_LINES of them in a row are equal without white space at their ends, comments, empty lines and includes.
"""
import argparse
import collections
import io
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tarfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PRODUCT = ("runtime/", "comm/", "graph/", "scheduler/", "python/", "packaging/", "examples/")
CPP = (".h", ".cpp", ".cu", ".cuh")
# Fields of records: in how many product files a reader finds each of them.
FIELDS = ("queue_depth", "disk_bytes", "no_core_ns", "fetch_ns", "exposed_ns", "enqueued_ns", "round_trips")
SHARED_LINES = 6
EXAMPLE = "bin/fashion_mnist"  # in a build
WAYS = ("docs/questions.md", "docs/reading-test.md")  # the way of a launch and of a gradient, file by file; the second: before
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
# A line that says nothing by itself: a brace, an include, the frame of a file.
EMPTY = re.compile(r"[\s{}()\[\];,]*|#.*|(import|from|using|namespace|template)\b.*|(public|private|protected):|}  // namespace.*")


def files_of_checkout():
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True,
                            capture_output=True, text=True).stdout.splitlines()
    return {name: (ROOT / name).read_text(errors="replace") for name in listed if is_read(name) and (ROOT / name).is_file()}


def files_of_revision(revision):
    packed = subprocess.run(["git", "archive", "--format=tar", revision], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        return {member.name: archive.extractfile(member).read().decode(errors="replace")
                for member in archive if member.isfile() and is_read(member.name)}


def is_read(name):
    in_product = name.startswith(PRODUCT) and name.endswith((*CPP, ".py", ".pyi"))
    return in_product or name in ("docs/glossary.md", *WAYS)


def plain_lines(text, is_python):
    """(number, text) of the lines that two places can share."""
    comment = r"(^|\s)#.*" if is_python else r"(^|\s)//.*"
    lines = ((number, re.sub(comment, "", line).strip()) for number, line in enumerate(text.splitlines(), 1))
    return [(number, line) for number, line in lines if not EMPTY.fullmatch(line)]


def shared_places(files):
    """(file, line, file, line, count) of each pair of places with at least SHARED_LINES equal lines in a row."""
    lines = {name: plain_lines(text, name.endswith(".py")) for name, text in files.items()}
    places = collections.defaultdict(list)
    for name, numbered in sorted(lines.items()):
        texts = [text for _, text in numbered]
        for start in range(len(texts) - SHARED_LINES + 1):
            places[tuple(texts[start:start + SHARED_LINES])].append((name, start))

    def text_at(name, index):
        return lines[name][index][1] if 0 <= index < len(lines[name]) else None

    pairs = []
    for same in places.values():
        for second, (right, b) in enumerate(same):
            for left, a in same[:second]:
                before = text_at(left, a - 1)
                if before is not None and before == text_at(right, b - 1):
                    continue  # the pair begins further up
                count = SHARED_LINES
                while text_at(left, a + count) is not None and text_at(left, a + count) == text_at(right, b + count):
                    count += 1
                if left != right or a + count <= b:
                    pairs.append((left, lines[left][a][0], right, lines[right][b][0], count))
    return sorted(pairs)


def users_of_headers(files):
    """The files that include each header, besides the source of the same name in the same module."""
    by_end = collections.defaultdict(list)
    for name in files:
        parts = name.split("/")
        for start in range(len(parts)):
            by_end["/".join(parts[start:])].append(name)
    users = {name: set() for name in files if name.endswith((".h", ".cuh"))}
    for name, text in files.items():
        folder = name.rpartition("/")[0]
        for included in INCLUDE.findall(text) if name.endswith(CPP) else ():
            candidates = by_end.get(included, [])
            # The file beside it, else the one that shares most of the path.
            header = max(candidates, key=lambda header: (header == f"{folder}/{included}", shared_path(header, name)), default=None)
            own = header and header.rpartition("/")[2].split(".")[0] == name.rpartition("/")[2].split(".")[0]
            if header in users and header != name and not (own and shared_path(header, name)):
                users[header].add(name)
    return users


def shared_path(left, right):
    count = 0
    for a, b in zip(left.split("/"), right.split("/")):
        if a != b:
            break
        count += 1
    return count


def glossary_words(text):
    """(words, words with two meanings): the rows of the glossary's tables."""
    explained, _, twofold = text.partition("\n## Words with two meanings")

    def rows(part):
        return [line for line in part.splitlines() if line.startswith("| ") and not re.match(r"\| (term|word) \|", line)]

    return len(rows(explained)), len(rows(twofold))


def entered_files(text, of):
    """How many files the way of a launch, or of a gradient, enters."""
    way = re.search(rf"^## The way of a {of},.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return len(set(re.findall(r"`([\w/]+\.(?:cpp|h))`", way[0]))) if way else None


def libraries(build):
    """The shared libraries that the example of a build loads."""
    printed = subprocess.run(["ldd", build / EXAMPLE], check=True, capture_output=True, text=True).stdout
    names = [line.split()[0].rpartition("/")[2] for line in printed.splitlines()]
    return {"libraries an example loads": len(names), "their names": sorted(names)}


def numbers_of(files, build=None):
    glossary = files.get("docs/glossary.md", "")
    product = {name: text for name, text in files.items() if name.startswith(PRODUCT)}
    length = {name: text.count("\n") for name, text in product.items()}
    cpp = {name: count for name, count in length.items() if name.endswith(CPP)}
    python = {name: count for name, count in length.items() if not name.endswith(CPP)}
    users = users_of_headers(product)
    longest = max(cpp, key=cpp.get)
    words, twofold = glossary_words(glossary)
    pairs = shared_places(product)
    result = {"C++ files": len(cpp), "C++ lines": sum(cpp.values()), "Python files": len(python), "Python lines": sum(python.values()),
              "files": len(length), "lines": sum(length.values()), "mean lines of a C++ file": round(statistics.mean(cpp.values())),
              "median lines of a C++ file": round(statistics.median(cpp.values())), "lines of the longest": cpp[longest],
              "the longest": longest, "C++ files of more than 600 lines": sum(count > 600 for count in cpp.values()),
              "headers": len(users), "headers with at most one user": sum(len(names) <= 1 for names in users.values()),
              "folders": len({name.rpartition("/")[0] for name in product})}
    for top in (top for top in PRODUCT if any(name.startswith(top) for name in length)):
        result[f"lines of {top}"] = sum(count for name, count in length.items() if name.startswith(top))
    for field in FIELDS:
        word = re.compile(rf"\b{field}\b")
        result[f"files that name {field}"] = sum(bool(word.search(text)) for text in product.values())
    result |= {f"pairs of places that share {SHARED_LINES} lines": len(pairs), "lines that they share": sum(pair[4] for pair in pairs),
               "words of the glossary": words, "words with two meanings": twofold}
    ways = next((files[name] for name in WAYS if name in files), "")
    result |= {f"files that a {of} enters": count for of in ("launch", "gradient") if (count := entered_files(ways, of))}
    return result | (libraries(build) if build else {}), pairs


def text_of(value):
    return " ".join(value) if isinstance(value, list) else f"{value:,}" if isinstance(value, int) else str(value)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--against", metavar="REVISION", help="a revision of git: its numbers too")
    arguments.add_argument("--build", type=pathlib.Path, metavar="FOLDER", help="a build of this checkout, for ldd")
    arguments.add_argument("--twice", action="store_true", help="list the pairs of places that share lines")
    arguments.add_argument("--json", action="store_true", help="print JSON")
    options = arguments.parse_args()
    after, pairs = numbers_of(files_of_checkout(), options.build)
    before = numbers_of(files_of_revision(options.against))[0] if options.against else {}
    if options.json:
        listed = {"twice": [f"{a}:{at} {b}:{other} {count}" for a, at, b, other, count in pairs]} if options.twice else {}
        print(json.dumps({"now": after} | ({"before": before} if before else {}) | listed, indent=2))
        return 0
    width = max(map(len, after))
    if before:
        print(f"{'':<{width}} {options.against[:12]:>12} {'now':>12}")
    for name, value in after.items():
        old = before.get(name)
        if isinstance(value, int) and old is not None:
            print(f"{name:<{width}} {old:>12,} {value:>12,} {value - old:>+9,}".rstrip())
        else:
            print(f"{name:<{width}} {text_of(old) + ' -> ' if old not in (None, value) else ''}{text_of(value):>12}")
    for left, at, right, other, count in pairs if options.twice else ():
        print(f"{count:4} {left}:{at} {right}:{other}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
