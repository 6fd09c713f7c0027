"""The commands and options of a dtrain program, read from its --help as a person would read it."""
import re
import subprocess


def help_of(program, *path):
    done = subprocess.run([program, *path, "--help"], check=True, capture_output=True, text=True)
    return done.stdout


def section(text, title):
    """The indented lines under a heading."""
    match = re.search(rf"^{title}:\n((?:[ \t]+.*\n|\n(?=[ \t]))*)", text, re.MULTILINE)
    return match.group(1).splitlines() if match else []


def commands(program, *path):
    # A description may be continued on further indented lines: a name stands two spaces in.
    lines = section(help_of(program, *path), "Subcommands")
    return [line.split()[0] for line in lines if re.match(r"  \S", line)]


def options(program, *path):
    names = []
    for line in section(help_of(program, *path), "Options"):
        if re.match(r"  -", line):
            names += [name for name in line.split()[0].split(",") if name.startswith("-")]
    return names


def tree(program, *path):
    """(path, commands, options) of the program and of each command below it."""
    below = commands(program, *path)
    found = [(path, below, options(program, *path))]
    for name in below:
        found += tree(program, *path, name)
    return found
