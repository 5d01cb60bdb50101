"""Which shard each key belongs to, and which scripts touch keys of several: read from the calls in the code.

A script runs on one server. So all keys that one call of it is given, and those that it names itself, must be on the
same shard: each key has a home, and a script whose keys have two homes stands in the way of sharding.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from dicast.workers.store.scripts import script_parts

ROOT = Path(__file__).parents[2]
ROOTS = (ROOT / "app", ROOT / "workers")


class Home(StrEnum):
    """Where a key would lie if there were several stores."""

    JOB = "job"
    """On the shard of a job's ledger, by the job's id; an index of jobs has a part on each."""
    POOL = "pool"
    """On the shard of a pool's admission, by the pool's name; leases and counts have a part on each."""
    EVERY = "every shard"
    """Each shard has its own, whole: its clock, its epoch, and the nodes that are heard there."""
    MESSAGES = "messages"
    """In the broker and Celery's result backend, which are not the store's to shard."""
    ACCESS = "access"
    """With the servers of `dicast serve`: one small store."""


HOMES: Mapping[Home, str] = {
    Home.JOB: """job items staging continuations pages page kept board assignments asking trouble alias assigned taken
        jobs unfinished bounded watch due outbox purse purses batches batch batch_members batches_over batch_taken
        batch_limits""",
    Home.POOL: """governor events counters changes exhausted rechecked known_pools overrides leases holders open
        job_limits rates waiting short freed""",
    Home.EVERY: """clock epoch node nodes nodes_heard nodes_silent nodes_registered nodes_gone gone_facts orders notices
        given_back beat spread nonce_key""",
    Home.MESSAGES: """queue unacked unacked_key unacked_index_key dead_letters refused_messages chord_ended chord_added
        task_result""",
    Home.ACCESS: """tokens token_ends revoked signing audit audit_head audit_counts audit_shorter audit_displacing
        store_users rate record""",
}
"""Each key by the name of what makes it: of Keys, LedgerKeys and AccessKeys, and a few names that are made in place."""

HOME_OF = {name: home for home, names in HOMES.items() for name in names.split()}

IN_PLACE = {"chord_member": ("chord_ended", "chord_added"), "fetch": ("queue", "unacked_key", "unacked_index_key"),
            "progress": ("task_result",),
            "requeue": ("unacked_key", "unacked_index_key")}  # fmt: skip
"""The keys of messages, whose names kombu and Celery make."""

NAMED_BY_SCRIPT = {"beacons": "node", "jobs_prefix": "page", "job": "page", "queue": "queue"}
"""What a script makes a key of that is not among its KEYS: the prefix's variable, and the key."""
_MADE = re.compile(r"redis\.call\('\w+', (\w+) \.\.|local page = (\w+) \.\.|redis\.call\('LPUSH', (queue),")


@dataclass(frozen=True, slots=True)
class ScriptKeys:
    """One script: the keys that its callers give it, in their order, and those that it names itself."""

    script: str
    given: tuple[str, ...]
    made: tuple[str, ...] = ()

    @property
    def homes(self) -> frozenset[Home]:
        """Where its keys lie, but for those that every shard has."""
        return frozenset(HOME_OF[name] for name in (*self.given, *self.made)) - {Home.EVERY}

    @property
    def crosses(self) -> bool:
        return len(self.homes) > 1

    @property
    def group(self) -> str:
        """The homes in words; those of no home but every shard run on each."""
        return " + ".join(sorted(self.homes)) or str(Home.EVERY)


def scripts() -> list[Path]:
    """All scripts of the product that are called, without what they include."""
    return sorted(p for root in ROOTS for p in root.rglob("*.lua") if p.read_text().startswith("#!"))


def keys_of_scripts() -> list[ScriptKeys]:
    """Every script with its keys. Raises `LookupError` for one of which a key cannot be told."""
    called = dict(IN_PLACE) | dict(_calls())
    found = []
    for path in scripts():
        if path.stem not in called:
            raise LookupError(f"no call of {path.name} names its keys in sight")
        found.append(ScriptKeys(path.stem, called[path.stem], _made(path)))
    return found


def _made(path: Path) -> tuple[str, ...]:
    """Keys that a script puts together itself, its includes' too."""
    names = {
        name for _, text in script_parts(path) for match in _MADE.finditer(text) for name in match.groups() if name
    }
    if unknown := names - set(NAMED_BY_SCRIPT):
        raise LookupError(f"{path.name} makes keys of {', '.join(sorted(unknown))}")
    return tuple(sorted({NAMED_BY_SCRIPT[name] for name in names}))


def _calls() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each script that Python calls in sight, and the names of its keys."""
    held: dict[str, ast.expr] = {}
    trees = {path: ast.parse(text) for path, text in _callers()}
    for path, tree in trees.items():
        if "ledger" in path.parts or path.name == "store_users.py":
            held |= _attributes(tree)  # set once in a class and read in those that derive from it
    for path, tree in trees.items():
        registered, functions = _registered(path.read_text()), list(_functions(tree))
        returned = {function.name: (_returned(function), _locals(function)) for function in functions}
        for function in functions:
            own = _locals(function)
            for call in ast.walk(function):
                names = own
                if isinstance(call, ast.Call) and (script := _script(call, registered)):
                    given = next((keyword.value for keyword in call.keywords if keyword.arg == "keys"), None)
                    if isinstance(given, ast.Name):
                        given = names.get(given.id)
                    if isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute):
                        given, names = returned.get(given.func.attr, (None, names))
                    if isinstance(given, ast.List):
                        yield script, tuple(_name(key, names, held) for key in given.elts)


def _callers() -> Iterator[tuple[Path, str]]:
    """The modules that call scripts."""
    for path in sorted(path for root in ROOTS for path in root.rglob("*.py")):
        if re.search(r"register_script|_scripts\[", text := path.read_text()):
            yield path, text


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def _returned(function: ast.AST) -> ast.expr | None:
    """What a function returns at last."""
    return next((node.value for node in reversed(list(ast.walk(function))) if isinstance(node, ast.Return)), None)


def _registered(text: str) -> dict[str, str]:
    """Attributes that hold a script, by the script's name."""
    files = dict(re.findall(r'^(_\w+) = .*?"(\w+)\.lua"', text, re.MULTILINE))
    found = {}
    for attribute, constant, name in re.findall(
        r'self\.(\w+) = client\.register_script\(script_text\((\w+|[^"\n]*"(\w+)\.lua"\)?)\)', text
    ):
        found[attribute] = name or files.get(constant, "")
    if "self._admit, self._only_give_back = " in text:
        found["script"] = "admit"
    return found


def _script(call: ast.Call, registered: Mapping[str, str]) -> str:
    match call.func:
        case ast.Subscript(value=ast.Attribute(attr="_scripts"), slice=ast.Constant(value=str(name))):
            return name
        case ast.Attribute(attr=attribute):
            return registered.get(attribute, "")
        case ast.Name(id="script"):
            return registered.get("script", "")
    return ""


def _locals(function: ast.AST) -> dict[str, ast.expr]:
    return {
        node.targets[0].id: node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    } | _unpacked(function, ast.Name)


def _attributes(tree: ast.AST) -> dict[str, ast.expr]:
    return {
        node.targets[0].attr: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute)
    } | _unpacked(tree, ast.Attribute)


def _unpacked(tree: ast.AST, kind: type[ast.Name | ast.Attribute]) -> dict[str, ast.expr]:
    found: dict[str, ast.expr] = {}
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple)):
            continue
        if isinstance(node.value, ast.Tuple):
            for target, value in zip(node.targets[0].elts, node.value.elts, strict=True):
                if isinstance(target, kind):
                    found[target.id if isinstance(target, ast.Name) else target.attr] = value
    return found


def _name(key: ast.expr, names: Mapping[str, ast.expr], held: Mapping[str, ast.expr]) -> str:
    """The name of what makes a key: of the property or the method, as `page` of `k.page(ref)`."""
    match key:
        case ast.Starred():
            return "queue"
        case ast.Call(func=ast.Attribute(attr="at"), args=[ast.Constant(value=str(name)), *_]):
            return name
        case ast.Call(func=ast.Attribute(attr=name)) | ast.Attribute(attr=name):
            found = name.removeprefix("_")
            if found in HOME_OF:
                return found
            if name in held:
                return _name(held[name], names, {n: v for n, v in held.items() if n != name})
        case ast.Name(id=name) if name in names:
            return _name(names[name], {n: v for n, v in names.items() if n != name}, held)
    raise LookupError(f"no home is known of the key {ast.unparse(key)}")
