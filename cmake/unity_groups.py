"""Which sources of a target are compiled together (a unity build), so that a name in an anonymous namespace need not be unique in
its library: two files that declare the same name there are never put into one compilation.

    unity_groups.py TARGETS    a line for each target: NAME;SIZE;SOURCE;SOURCE;...   SIZE: the most sources in a compilation
Prints a line for each source: NAME|SOURCE|GROUP. Files are taken in order, each into the first compilation that has room and no
name of it; so a change of names moves few files.
"""
import re
import sys
from pathlib import Path

OPENED = re.compile(r"^(?:inline )?namespace( [\w:]+)? \{|^extern \"C\" \{")
TYPE = re.compile(r"\b(?:struct|class|union|enum(?: class)?) (\w+)\b(?!\s*[*&]?\s*\w+\s*[({=;])")
FUNCTION = re.compile(r"([\w~:]+)\s*\(")
VARIABLE = re.compile(r"(\w+)(?:\[\w*\])*\s*(?:=|\{|;)")


def declared_name(line):
    """The name that a line at the outermost level of a namespace declares, or ""."""
    if found := TYPE.search(line):
        return found[1]
    before_value = line.split("=")[0]
    for pattern, text in ((FUNCTION, before_value), (VARIABLE, line)):
        if found := pattern.search(text):
            return found[1]
    return ""


def names_of(source):
    """What a file declares for itself, in anonymous namespaces and `static`: of each name the text of its alias, or "". Relies on
    the layout that clang-format makes: nothing inside of a namespace is indented, so what begins a line is declared in a
    namespace, not in a class or function."""
    names, namespaces = {}, []
    try:
        lines = Path(source).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:  # made by the build later
        return names
    for line in lines:
        if opened := OPENED.match(line):
            if not line.rstrip().endswith("}"):
                namespaces.append(opened[1] or "")
        elif line.startswith("}  // namespace") or line.startswith('}  // extern'):
            if namespaces:
                namespaces.pop()
        elif re.match(r"[A-Za-z_\[:]", line) and ("" in namespaces or line.startswith("static ")):
            # A macro (TEST) makes names of its arguments.
            if alias := re.match(r"using (\w+) =", line):
                names[alias[1]] = line
            elif not re.match(r"using |namespace |static_assert|[A-Z][A-Z_]+\(", line):
                names[declared_name(re.sub(r"^template <.*?> (?=\w)", "", line))] = ""
        elif define := re.match(r"#\s*define (\w+)", line):
            names[define[1]] = ""
    names.pop("", None)
    return names


def are_apart(names, others):
    """Whether no name is in both, but for an alias of the same text."""
    return all(name not in others or text and others[name] == text for name, text in names.items())


def groups_of(sources, size):
    """A list of (source, number of its compilation)."""
    compilations = []  # of each: how many files, their names
    result = []
    for source in sources:
        names = names_of(source)
        for number, (files, taken) in enumerate(compilations):
            if files < size and are_apart(names, taken):
                compilations[number] = (files + 1, taken | names)
                break
        else:
            number = len(compilations)
            compilations.append((1, names))
        result.append((source, number))
    return result


def main():
    for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines():
        target, size, *sources = line.split(";")
        for source, number in groups_of(sources, int(size)):
            print(f"{target}|{source}|{number}")


if __name__ == "__main__":
    main()
