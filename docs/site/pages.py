"""The documentation as a site: pages that are made from the code and from the texts beside `docs/`. `make docs`

MkDocs calls these hooks (`mkdocs.yml`). README.md becomes the first page; commands, settings, Python's names, HTTP
routes and the job file's schema are read from the code, so that they cannot differ from it.
"""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import typer
import typer.cli
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import dicast
from dicast.app.application import create_app
from dicast.app.cli.main import cli
from dicast.app.domain.job import EvaluationJob
from dicast.app.server.interface import create_server
from dicast.config.settings import Settings

ROOT = Path(__file__).parents[2]
MERMAID = ROOT / ".docs" / "mermaid.min.js"
"""Where `make docs` puts it; without it, diagrams are shown as their source."""
TEXTS = {
    "index.md": "README.md", "changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md", "examples.md": "examples/README.md",
}  # fmt: skip
SETTINGS = """\
# Settings

From the environment and `.env`. Durations are seconds.

| variable | default | meaning |
|---|---|---|"""
ROUTES = """\
# HTTP routes

Made from the server's [OpenAPI description](openapi.json); how they are used is told in [Use it over HTTP](../http.md).
"""
PYTHON = """\
# Python

What programs import from `dicast`.
"""
JOB = """\
# Job files

The [JSON Schema](job.schema.json) of a job; each key is explained in [Write jobs and read results](../data-model.md).
Editors that know the YAML language server check a job file whose first line names it:

```yaml
# yaml-language-server: $schema=job.schema.json
```
"""
SCHEMA, OPENAPI = "reference/job.schema.json", "reference/openapi.json"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Diagrams are drawn only by what lies beside the site: nothing is fetched from elsewhere."""
    if MERMAID.exists():
        config.extra_javascript.append("assets/mermaid.min.js")
    else:
        config.mdx_configs["pymdownx.superfences"] = {}
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made."""
    made = {name: _moved((ROOT / source).read_text(encoding="utf-8")) for name, source in TEXTS.items()}
    made["examples.md"] += _programs()
    made |= {
        "reference/commands.md": _commands(), "reference/settings.md": _settings(), "reference/python.md": _python(),
        "reference/http.md": _routes(), "reference/job.md": _job(),
        SCHEMA: json.dumps(EvaluationJob.model_json_schema(), indent=2), OPENAPI: json.dumps(_openapi(), indent=2),
    }  # fmt: skip
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    if MERMAID.exists():
        files.append(File.generated(config, "assets/mermaid.min.js", abs_src_path=str(MERMAID)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links to texts that stand above `docs/`."""
    return _moved(markdown, within="../")


def _moved(text: str, within: str = "docs/") -> str:
    """Links of a text above `docs/` as they are within the site, or, in one of its pages, those to such a text."""
    targets = {source: name for name, source in TEXTS.items()} | {
        "examples/": "examples.md",
        ".env.example": "reference/settings.md",
    }

    def target(found: re.Match[str]) -> str:
        path, anchor = found[1], found[2] or ""
        if within == "docs/":
            return f"]({targets.get(path, path.removeprefix(within))}{anchor})"
        return f"]({targets.get(path.removeprefix(within), path)}{anchor})"

    return re.sub(r"\]\(([^)#\s:]+)(#[^)\s]*)?\)", target, text)


def _programs() -> str:
    """The examples' own text."""
    paths = sorted(path for path in (ROOT / "examples").iterdir() if path.suffix in {".py", ".toml", ".yaml", ".yml"})
    kinds = {".py": "python", ".toml": "toml"}
    return "".join(
        f"\n## {path.name}\n\n````{kinds.get(path.suffix, 'yaml')}\n{path.read_text(encoding='utf-8')}````\n"
        for path in paths
    )


def _commands() -> str:
    command = typer.main.get_command(cli)
    context = command.context_class(command, info_name="dicast")
    text = typer.cli.get_docs_for_click(obj=command, ctx=context, name="dicast", title="Commands")
    text = re.sub(r"\*\*Commands\*\*:\n\n(?:\* [^\n]*\n)+", "", text)  # a heading for each follows
    return re.sub(r"\x08?\n((?:  \S[^\n]*\n)+)", _as_it_is, text)


def _as_it_is(found: re.Match[str]) -> str:
    """Lines of a help text that are indented by two, such as examples."""
    return f"\n```console\n{inspect.cleandoc(found[1])}\n```\n"


def _settings() -> str:
    """A table of all settings."""
    rows = [SETTINGS]
    for name, field in Settings.model_fields.items():
        default = "" if field.default is None else f"`{field.default}`"
        rows.append(f"| `{field.alias or name}` | {default} | {_cell(field.description or '')} |")
    return "\n".join(rows) + "\n"


def _python() -> str:
    """Each public name, for mkdocstrings to tell of."""
    return PYTHON + "".join(f"\n::: {home}.{name}\n" for name, home in sorted(dicast.HOMES.items()) if name != "celery")


def _openapi() -> dict[str, Any]:
    # With a store's address none is started; it is never connected to.
    return create_server(create_app({"REDIS_URL": "redis://localhost"})).openapi()


def _routes() -> str:
    """Every route with what it answers."""
    rows = [ROUTES]
    for path, methods in sorted(_openapi()["paths"].items()):
        for method, route in methods.items():
            given = [
                f"| `{p['name']}` | {p['in']} | {_cell(p.get('description') or '')} |"
                for p in route.get("parameters", [])
            ]
            table = "\n| parameter | in | meaning |\n|---|---|---|\n" + "\n".join(given) + "\n" if given else ""
            answers = ", ".join(f"{code} {_cell(answer['description'])}" for code, answer in route["responses"].items())
            told = _plain(route.get("description", ""))
            rows.append(f"\n## {method.upper()} {path}\n\n{told}\n{table}\nAnswers: {answers}.\n")
    return "".join(rows)


def _job() -> str:
    return f"{JOB}\n```json\n{json.dumps(EvaluationJob.model_json_schema(), indent=2)}\n```\n"


def _plain(text: str) -> str:
    """A docstring as Markdown: double backquotes are code, angle brackets no tags."""
    return text.replace("``", "`").replace("<", "&lt;")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
