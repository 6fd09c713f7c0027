"""Walking a JSON Schema: which keys it describes, and which values it says something about."""
import copy


def resolve(root, part):
    while isinstance(part, dict) and "$ref" in part:
        target = root
        for name in part["$ref"].removeprefix("#/").split("/"):
            target = target[name]
        part = target
    return part


def walk(root):
    """path -> the subschemas that speak of what is there, in the order of the schema; (…, 0) is an item of a list."""
    found = {}

    def visit(part, path):
        part = resolve(root, part)
        if not isinstance(part, dict):
            return
        if path:
            found.setdefault(path, []).append(part)
        for name, child in part.get("properties", {}).items():
            if isinstance(resolve(root, child), dict):
                visit(child, (*path, name))
        items = part.get("items")
        if isinstance(items, dict) and "properties" in resolve(root, items):
            visit(items, (*path, 0))
        for word in ("then", "else"):
            if word in part:
                visit(part[word], path)
        for word in ("allOf", "anyOf"):
            for child in part.get(word, []):
                visit(child, path)

    visit(root, ())
    return {path: parts for path, parts in found.items() if any(described(root, part) for part in parts)}


def described(root, part):
    """Whether the subschema says what a value is, rather than only what else holds in some case."""
    return bool({"type", "enum", "const", "description", "title", "$ref"} & set(part))


def declared(parts):
    """Values the schema names as good ones."""
    values = []
    for part in parts:
        values += [part[word] for word in ("default", "const") if word in part]
        values += part.get("examples", []) + part.get("enum", [])
    return values


def values_to_try(parts):
    """Good values, what lies at and just beyond each bound, and values of every type."""
    values = declared(parts)
    for part in parts:
        for word in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
            if word in part and abs(part[word]) < 1e300:
                values += [part[word] - 1, part[word], part[word] + 1]
        if "maxLength" in part:
            values += ["x" * part["maxLength"], "x" * (part["maxLength"] + 1)]
    values += ["", "x", 0, 1, -1, 2.5, True, False, None, [], {}, ["a"], {"a": 1}]
    unique = []
    for value in values:
        if not any(same(value, other) for other in unique):
            unique.append(value)
    return unique


def same(a, b):
    return type(a) is type(b) and a == b


def put(document, path, value):
    """A copy of the document with that value there; None where the path leads through a list that is not there. An item
    is the last one of its list."""
    document = copy.deepcopy(document)
    place = document
    for key in path[:-1]:
        if key == 0:
            if not isinstance(place, list):
                return None
            place = place[-1]
            continue
        wants_list = path[path.index(key) + 1] == 0
        if wants_list and not isinstance(place.get(key), list):
            return None
        if not wants_list and not isinstance(place.get(key), dict):
            place[key] = {}
        place = place[key]
    if isinstance(place, list) and path[-1] != 0:
        return None
    place[-1 if path[-1] == 0 else path[-1]] = value
    return document


def at(document, path):
    """[value] at a path, or None."""
    for key in path:
        if not isinstance(document, dict) or key not in document:
            return None
        document = document[key]
    return [document]
