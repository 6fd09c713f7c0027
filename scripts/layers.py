#!/usr/bin/env python3
"""Which folder includes which: checks that folders stay small and that includes go one way.

  scripts/layers.py            prints a line for each folder: how many files, which folders it includes; then what is wrong
  scripts/layers.py --check    prints what is wrong alone

Wrong is: a folder of more than 25 source files (a header and its source count as one), a circle of includes between
folders, and an include of a module that stands above. The exit status is 1 where anything is wrong.
The modules' order is ORDER; a module's public headers (include/dtrain/MODULE) are a folder of their own, which includes
other public headers alone.
"""
import argparse
import collections
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MOST_FILES = 25
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]', re.MULTILINE)
# From the bottom up. What stands in one line does not include each other.
ORDER = [
    ["runtime/base"],
    ["runtime/host", "comm", "runtime/data"],
    ["runtime/config"],
    ["runtime/profile", "scheduler", "runtime/checkpoint"],
    ["runtime/analysis", "runtime/rank"],
    ["runtime/launcher", "runtime/train", "runtime/torch_distributed"],
    ["runtime/board"],
    ["runtime/cli", "examples", "python"],
]
# Modules whose code is opened at run time, or which are programs of their own: nobody includes them.
MODULES = [module for line in ORDER for module in line]


def sources():
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.h", "*.cpp"], cwd=ROOT,
                            check=True, capture_output=True, text=True).stdout.split()
    return [name for name in listed if name.startswith(tuple(module + "/" for module in MODULES)) and (ROOT / name).exists()]


def module_of(folder):
    return max((module for module in MODULES if folder == module or folder.startswith(module + "/")), key=len)


def resolve(name, path, known):
    """The file of the tree that `name`, included by `path`, means; none for headers of libraries."""
    folder = pathlib.PurePosixPath(path).parent
    module = module_of(path)
    candidates = [str(folder / name), f"{module}/{name}"]
    if module == "comm" or path.startswith("comm/"):
        candidates.append(f"comm/{name}")
    if name.startswith("dtrain/"):
        candidates += [f"{other}/include/{name}" for other in MODULES]
    return next((header for header in candidates if header in known), None)


def circles(edges):
    """The strongly connected groups of more than one folder (Tarjan, SIAM Journal on Computing 1972)."""
    index, low, stack, found, groups = {}, {}, [], set(), []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        found.add(node)
        for other in sorted(edges.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in found:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = []
            while True:
                other = stack.pop()
                found.discard(other)
                group.append(other)
                if other == node:
                    break
            if len(group) > 1:
                groups.append(sorted(group))

    for node in sorted(edges):
        if node not in index:
            visit(node)
    return groups


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--check", action="store_true", help="print what is wrong alone")
    options = arguments.parse_args()
    known = set(sources())
    files, edges, why = collections.defaultdict(set), collections.defaultdict(set), {}
    for path in sorted(known):
        folder = str(pathlib.PurePosixPath(path).parent)
        files[folder].add(pathlib.PurePosixPath(path).stem)
        edges[folder]
        for name in INCLUDE.findall((ROOT / path).read_text()):
            target = resolve(name, path, known)
            if not target:
                continue
            other = str(pathlib.PurePosixPath(target).parent)
            if other != folder:
                edges[folder].add(other)
                why.setdefault((folder, other), []).append(f"{path} includes {name}")

    wrong = [f"{folder} has {len(names)} source files, {MOST_FILES} are the most" for folder, names in sorted(files.items())
             if len(names) > MOST_FILES]
    for group in circles(edges):
        wrong.append("these folders include each other: " + ", ".join(group))
        for (folder, other), lines in sorted(why.items()):
            if folder in group and other in group:
                wrong += [f"    {line}" for line in lines[:3]]
    level = {module: number for number, line in enumerate(ORDER) for module in line}
    for (folder, other), lines in sorted(why.items()):
        above, below = module_of(folder), module_of(other)
        if above != below and level[below] >= level[above]:
            wrong += [f"{below} does not stand below {above}: {line}" for line in lines]
        public = f"{below}/include/"
        if above != below and not other.startswith(public):
            wrong += [f"a private header of {below}: {line}" for line in lines]
        if folder.startswith(f"{above}/include/") and "/include/" not in other:
            wrong += [f"a public header includes a private one: {line}" for line in lines]

    if not options.check:
        width = max(map(len, files))
        for folder in sorted(files):
            within = sorted(other.removeprefix(module_of(folder) + "/") for other in edges[folder]
                            if module_of(other) == module_of(folder) and "/include/" not in other)
            modules = sorted({module_of(other).rpartition("/")[2] for other in edges[folder]
                              if module_of(other) != module_of(folder)})
            print(f"{folder:<{width}} {len(files[folder]):3}  " + " ".join(within) + (" | " if within else "| ") + " ".join(modules))
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
