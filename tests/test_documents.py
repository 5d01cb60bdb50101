"""The documents name what there is: files, links, tests, the layers of the rooms."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.md")])
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
FOLDERS = "app|workers|config|lab|tests|docs|dicast|examples"
ROOMS = ("app", "workers", "config")  # imported as `dicast.app` and so on
TESTS = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))

every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def alternatives(text: str) -> Iterator[str]:
    """`a/{b,c}.py` stands for `a/b.py` and `a/c.py`."""
    braces = re.search(r"\{([^{}]*)\}", text)
    if braces is None:
        yield text
        return
    for part in braces[1].split(","):
        yield from alternatives(text[: braces.start()] + part + text[braces.end() :])


def anchors(document: Path) -> set[str]:
    """As GitHub makes them of headings, and those that are written out."""
    text = document.read_text(encoding="utf-8")
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    made = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    return made | set(re.findall(r'<a id="([^"]+)">', text))


@every_document
def test_every_file_that_a_document_names_is_there(document: Path) -> None:
    named = re.findall(rf"`((?:{FOLDERS})/[\w./{{}},*-]+)`", document.read_text(encoding="utf-8"))
    paths = [path.rstrip("/") for name in named for path in alternatives(name)]
    roots = [ROOT, ROOT / "tests"] if document.name == "chaos.md" else [ROOT]
    assert [path for path in paths if not any(any(root.glob(path)) for root in roots)] == []


@every_document
def test_every_module_that_a_document_names_alone_is_there(document: Path) -> None:
    modules = {path.name for room in FOLDERS.split("|") for path in (ROOT / room).rglob("*.py")}
    assert set(re.findall(r"`(\w+\.py)`", document.read_text(encoding="utf-8"))) <= modules


@every_document
def test_every_link_leads_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]*(?:#[^)\s]*)?)\)", document.read_text(encoding="utf-8")):
        if target.startswith(("http", "mailto:")):
            continue
        name, _, anchor = target.partition("#")
        found = document.parent / name if name else document
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), target


@every_document
def test_every_test_that_a_document_names_is_there(document: Path) -> None:
    named = set(re.findall(r"`(test_\w+)`", document.read_text(encoding="utf-8")))
    assert {name for name in named if f"def {name}(" not in TESTS} == set()


@every_document
def test_every_piece_of_yaml_can_be_read(document: Path) -> None:
    """In braces, a text that ends with a question mark wants quotes."""
    for block in re.findall(r"^```yaml\n(.*?)^```", document.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
        assert all(each is not None for each in yaml.safe_load_all(block)), block


@every_document
def test_no_line_of_a_diagram_is_cut(document: Path) -> None:
    """Mermaid ends a statement at a semicolon, and reads '#' as the start of a character's code."""
    for diagram in re.findall(
        r"^```mermaid\n(.*?)^```", document.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    ):
        assert not re.search("[;#]", diagram)


@pytest.mark.parametrize("package", ["app", "workers"])
def test_the_table_of_rooms_is_the_contract_of_the_layers(package: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = [
        c for c in project["tool"]["importlinter"]["contracts"] if c.get("containers") == [f"dicast.{package}"]
    ]
    height = len(contract["layers"])
    layers = [
        (height - depth, room.strip()) for depth, layer in enumerate(contract["layers"]) for room in layer.split("|")
    ]
    section = ARCHITECTURE.partition(f"\n### `{package}/`\n")[2].partition("\n##")[0]
    rows = re.findall(rf"^\| (\d+) \| `{package}/(\w+)(?:/|\.py)` \|", section, re.MULTILINE)
    assert sorted((int(layer), room) for layer, room in rows) == sorted(layers)
    rooms = {path.stem for path in (ROOT / package).iterdir() if path.name[0] not in "._"}
    assert {room for _, room in rows} == rooms


def test_every_module_of_the_pipeline_has_its_row() -> None:
    section = ARCHITECTURE.partition("\n### The pipeline's modules\n")[2].partition("\n##")[0]
    named = set(re.findall(r"`(\w+\.py)`", section))
    assert named == {path.name for path in (ROOT / "app" / "pipeline").glob("[!_]*.py")}


def test_the_site_has_every_page_of_the_documents() -> None:
    """MkDocs refuses others, too, but only where it is installed (`make docs`)."""
    listed = set(re.findall(r": ([a-z-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    assert {path.name for path in (ROOT / "docs").glob("*.md")} <= listed


def prose(path: Path) -> str:
    """The docstrings and comments of a Python file, or the comments of a Lua script."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".lua":
        return "\n".join(re.findall(r"--(?!@include).*", source))
    described = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = [ast.get_docstring(node) for node in ast.walk(ast.parse(source)) if isinstance(node, described)]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return "\n".join([*filter(None, docstrings), *(token.string for token in tokens if token.type == tokenize.COMMENT)])


def members(module: Path) -> set[str]:
    """All names that a module defines or imports, those of classes included."""
    nodes = ast.walk(ast.parse(module.read_text(encoding="utf-8")))
    names = (getattr(node, field, None) for node in nodes for field in ("name", "asname", "id", "arg"))
    return {name for name in names if isinstance(name, str)}


def is_defined(dotted: str, root: Path) -> bool:
    """Whether `dicast.app.domain.text.clean` is a module, or a name in the longest module of its beginning."""
    parts = dotted.split(".")[1:] if dotted.split(".")[1] in ROOMS else dotted.split(".")
    for length in range(len(parts), 0, -1):
        place = root.joinpath(*parts[:length])
        for module in (place.with_suffix(".py"), place / "__init__.py"):
            if module.exists():
                return set(parts[length:]) <= members(module)
    return False


def unknown_names(path: Path, text: str, root: Path) -> list[str]:
    """What the text of a file names and is not there: files beside it or below `root`, and dotted names."""
    files = re.findall(r"(?<![\w./-])[\w./-]*\w\.(?:py|lua)\b", text)
    dotted = re.findall(r"\bdicast(?:\.\w+)+", text)
    return [
        *(name for name in files if not any((place / name).exists() for place in (path.parent, root))),
        *(name for name in dotted if not is_defined(name, root)),
    ]


@pytest.mark.parametrize("room", ["app", "workers", "config", "dicast", "lab"])
def test_what_docstrings_and_comments_name_is_there(room: str) -> None:
    sources = sorted([*(ROOT / room).rglob("*.py"), *(ROOT / room).rglob("*.lua")])
    files = [path for path in sources if "peers" not in path.parts]
    unknown = {str(path.relative_to(ROOT)): unknown_names(path, prose(path), ROOT) for path in files}
    assert {path: names for path, names in unknown.items() if names} == {}


FOREIGN_CLASSES = {"RateLimit", "RetryInfo", "TaskGroup"}  # a header's field, Google's, asyncio's


def unknown_classes(text: str, code: str) -> set[str]:
    """Names in backquotes that look like a class's, `TwoWords`, and occur nowhere in the code."""
    named = set(re.findall(r"`([A-Z][a-z]+[A-Z]\w*)`", text)) - FOREIGN_CLASSES
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    return named - {token.string for token in tokens if token.type == tokenize.NAME}


def test_every_class_that_a_docstring_or_comment_names_is_there() -> None:
    rooms = ("app", "workers", "config", "dicast", "lab")
    files = [path for room in rooms for path in (ROOT / room).rglob("*.py") if "peers" not in path.parts]
    code = "\n".join(path.read_text(encoding="utf-8") for path in files)
    assert unknown_classes("\n".join(map(prose, files)), code) == set()
    assert unknown_classes("`TwoWords`", "class TwoWords: ...  # OneWord") == set()
    assert unknown_classes("`OneWord`", "class TwoWords: ...  # OneWord") == {"OneWord"}


def test_a_name_of_nothing_is_seen(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    module = tmp_path / "app" / "one.py"
    module.write_text("'See two.py.'\n\n\ndef f():\n    # dicast.app.one.g\n    pass\n", encoding="utf-8")
    assert prose(module) == "See two.py.\n# dicast.app.one.g"
    assert unknown_names(module, prose(module), tmp_path) == ["two.py", "dicast.app.one.g"]
    script = tmp_path / "app" / "one.lua"
    script.write_text("--@include gone.lua\nlocal a = 1  -- see two.lua\n", encoding="utf-8")
    assert unknown_names(script, prose(script), tmp_path) == ["two.lua"]
    assert unknown_names(module, "one.py, app/one.py, dicast.app.one, dicast.app.one.f", tmp_path) == []
