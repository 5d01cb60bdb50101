"""The store's scripts as texts: they compile, say what they take, and name it once."""

import ast
import re
from functools import cache
from itertools import count
from pathlib import Path

import pytest
from luaparser import ast as lua
from luaparser import astnodes

import dicast.app
import dicast.workers
from dicast.workers.store.connection import connect
from dicast.workers.store.scripts import FREEING, PLAIN, script_parts, script_text
from tests.lua_names import Names, parsed, statements

ROOTS = [Path(module.__path__[0]).resolve() for module in (dicast.app, dicast.workers)]
FILES = sorted(file for root in ROOTS for file in root.rglob("*.lua"))
SCRIPTS = [file for file in FILES if file.read_text().startswith("#!")]
INCLUDED = [file for file in FILES if file not in SCRIPTS]
WIDEST = 120


def names_in(nodes):
    """All names that stand in these nodes, whether they are variables or fields."""
    found = []
    for node in nodes if isinstance(nodes, list) else [nodes]:
        found += [inner for inner in lua.walk(node) if isinstance(inner, astnodes.Name)]
    return found


def named_and_rest(file):
    """How many keys and arguments a script names, {kind: (number, whether a list of more follows)}, and its statements
    after those lines."""
    found, left = {}, statements(file.read_text())
    while left and {"KEYS", "ARGV"} & {node.id for node in names_in(left[0])}:
        statement = left.pop(0)
        assert isinstance(statement, astnodes.LocalAssign), "a variable of its own for each"
        for index, call in enumerate(statement.values):
            kind, *_ = [argument.id for argument in call.args if isinstance(argument, astnodes.Name)]
            number, more = found.get(kind, (0, False))
            if call.func.id == "rest":
                found[kind] = number, True
            else:
                assert call.func.id == "unpack"
                found[kind] = number + len(statement.targets) - index, more
    return found, left


def told_in_header(file, kind):
    """The same by the header's comment: numbered from 1, the last one with dots if more follow."""
    lines = file.read_text().splitlines()[1:]
    header = " ".join(
        line.removeprefix("--") for line in lines[: next(i for i, x in enumerate(lines) if x[:2] != "--")]
    )
    section = re.search(rf" {kind} (.*?)(?= KEYS | ARGV | Reply |$)", header)
    at, text = 0, section[1] if section else ""
    for number in count(1):
        found = re.compile(rf"(?:^|\s){number}(\.\.\.)? ").search(text, at)
        if found is None:
            return number - 1, False
        if found[1]:
            return number - 1, True
        at = found.end() - 1
    raise AssertionError


def each(files):
    return pytest.mark.parametrize("file", files, ids=lambda file: file.name)


@each(SCRIPTS)
def test_a_script_compiles(redis_url, file):
    store = connect(redis_url)
    assert store.script_load(script_text(file))
    assert script_text(file).startswith((PLAIN, FREEING, "#!lua flags=no-writes\n"))
    store.close()


@each(FILES)
def test_lines_fit_on_a_screen(file):
    assert [line for line in file.read_text().splitlines() if len(line) > WIDEST] == []


@each(SCRIPTS)
def test_every_name_is_defined_before_it_is_read(file):
    assert Names(*(text for _, text in script_parts(file))).undefined == set()


@pytest.mark.parametrize(
    ("text", "undefined", "unused"),
    [
        ("local a = 1 return a + b", {"b"}, set()),
        ("local a, _b = 1, 2 return 1", set(), {"a"}),
        ("local t = {a = 1} return t.b", set(), set()),
        ("local t = {} return t[a]", {"a"}, set()),
        ("return {[a] = b}", {"a", "b"}, set()),
        ("local function f(x) return y end return f", {"y"}, {"x"}),
        ("for i, v in ipairs({}) do redis.call(v) end", set(), {"i"}),
        ("for i = 1, n do local j = i end", {"n"}, {"j"}),
        ("if a then local b = 1 end return b", {"a", "b"}, {"b"}),
        ("repeat local a = 1 until a == 1", set(), set()),
        ("a = 1", {"a"}, set()),
        ("local a a = 1", set(), {"a"}),
        ("function f() end", {"f"}, set()),
        ("return f(), function(g) return g:h(i) end", {"f", "i"}, set()),
    ],
)
def test_names_are_looked_up_as_lua_does(text, undefined, unused):
    names = Names(text)
    assert (names.undefined, names.unused | names.unused_on_top) == (undefined, unused)


@each(SCRIPTS)
def test_what_a_script_names_it_reads(file):
    names = names_of(file)
    assert (names.unused, names.unused_on_top) == (set(), set())


@cache
def names_of(file):
    return Names(file.read_text())


@each(INCLUDED)
def test_what_an_included_file_gives_is_taken(file):
    names = names_of(file)
    takers = [other for other in SCRIPTS if file in {part.resolve() for part, _ in script_parts(other)}]
    taken = {name for taker in FILES if taker != file for name in names_of(taker).undefined}
    assert takers
    assert (names.unused, names.unused_on_top - taken) == (set(), set())


@each(SCRIPTS)
def test_keys_and_arguments_are_named_first_and_once(file):
    """By `unpack`, or `rest` where there may be many; then ones that are numbers or JSON are converted."""
    head, body = named_and_rest(file)
    assert "KEYS" in head
    assert not {"KEYS", "ARGV"} & {node.id for node in names_in(body)}


@each(INCLUDED)
def test_included_files_know_no_keys_nor_arguments(file):
    assert not {"KEYS", "ARGV"} & {node.id for node in names_in(parsed(file.read_text()))}


@each(SCRIPTS)
@pytest.mark.parametrize("kind", ["KEYS", "ARGV"])
def test_the_header_tells_what_is_named(file, kind):
    assert told_in_header(file, kind) == named_and_rest(file)[0].get(kind, (0, False))


def python_calls():
    """Each call of a script that names it, by `self._scripts["x"](...)` or the attribute that it was registered under:
    {(the script's name, kind, how many are passed in sight, whether more are unpacked there)}."""
    found = set()
    for path in sorted(path for root in ROOTS for path in root.rglob("*.py")):
        text = path.read_text()
        if not re.search(r"register_script|_scripts\[", text):
            continue
        tree = ast.parse(text)
        scripts = dict(re.findall(r'self\.(\w+) = client\.register_script\(script_text\(\w+ / "(\w+)\.lua"\)\)', text))
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                found |= set(calls_in(function, scripts))
    return found


def calls_in(function, scripts):
    lists = {
        node.targets[0].id: node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.List)
    }
    for node in ast.walk(function):
        match node:
            case ast.Call(func=ast.Subscript(value=ast.Attribute(attr="_scripts"), slice=ast.Constant(value=name))):
                pass
            case ast.Call(func=ast.Attribute(attr=attribute)) if attribute in scripts:
                name = scripts[attribute]
            case _:
                continue
        for given in node.keywords:
            values = lists.get(given.value.id) if isinstance(given.value, ast.Name) else given.value
            if given.arg in {"keys", "args"} and isinstance(values, ast.List):
                starred = any(isinstance(value, ast.Starred) for value in values.elts)
                plain = sum(not isinstance(value, ast.Starred) for value in values.elts)
                yield name, {"keys": "KEYS", "args": "ARGV"}[given.arg], plain, starred


@pytest.mark.parametrize("call", sorted(python_calls()), ids=lambda call: f"{call[0]}-{call[1]}")
def test_callers_pass_what_is_named(call):
    name, kind, plain, starred = call
    (file,) = [file for file in SCRIPTS if file.stem == name]
    number, more = named_and_rest(file)[0].get(kind, (0, False))
    assert plain <= number or more
    assert plain >= number or starred


def test_most_calls_are_in_sight():
    assert len({name for name, *_ in python_calls()}) > len(SCRIPTS) / 2
