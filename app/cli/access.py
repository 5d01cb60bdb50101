"""`dicast token issue|list|revoke|rotate` and `dicast audit verify|show`."""

from __future__ import annotations

import re
from dataclasses import asdict
from datetime import datetime

import orjson
from rich.table import Table
from rich.text import Text

from dicast.app.access.audit import AuditFinding, operator
from dicast.app.access.scopes import Scope
from dicast.app.access.store_users import StoreUsersUnavailable
from dicast.app.application import Dicast
from dicast.app.cli.console import Refused, Terminal
from dicast.app.cli.run import application
from dicast.app.domain.text import printable
from dicast.errors import Exit, meant

STATES = {"valid": "green", "revoked": "red"}
UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
CELL_CHARS = 60


def issue_token(
    terminal: Terminal, subject: str, scopes: list[str], *, ttl: str, node: str, pools: list[str] | None,
    labels: list[str] | None,
) -> None:  # fmt: skip
    """Print a new token on standard output, and what it permits on standard error."""
    dicast, issuable = application(terminal), [scope for scope in Scope if scope is not Scope.NODE_HEARTBEAT]
    if wrong := next((scope for scope in scopes if scope not in issuable), None):
        raise Refused(f"--scope must be one of {', '.join(issuable)}, got {wrong!r}{meant(wrong, issuable)}")
    unknown = sorted(set(pools or ()) - set(dicast.pools.pools))
    if unknown:
        listed = ", ".join(dicast.pools.pools)
        raise Refused(f"--pool must be one of {listed}, got {unknown[0]!r}{meant(unknown[0], dicast.pools.pools)}")
    token = dicast.tokens.issue(
        subject, map(Scope, scopes), ttl_s=seconds("--ttl", ttl), node=node, pools=pools, labels=labels
    )
    claims = dicast.tokens.verify(token, None)
    details = {"subject": subject, "scopes": scopes, "node": node, "pools": pools, "labels": labels}
    dicast.audit.record(operator(), "token issue", claims.id, "done", details)
    terminal.say(f"Token {claims.id} of {subject} is good until {_time(claims.expires_at)} for {', '.join(scopes)}.")
    terminal.emit(token)


def list_tokens(terminal: Terminal, *, json: bool) -> None:
    dicast = application(terminal)
    tokens = [] if dicast.nothing_stored and dicast.token_secrets else dicast.tokens.list()
    if json:
        terminal.emit(orjson.dumps([asdict(token) for token in tokens], option=orjson.OPT_INDENT_2).decode())
        return
    if not tokens:
        terminal.say("There are no tokens.")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("id", "subject", "scopes", "node", "until", "state"):
        table.add_column(title, no_wrap=title not in ("subject", "node"), overflow="fold")
    for token in tokens:
        table.add_row(
            Text(token.id), Text(printable(token.subject, CELL_CHARS)), Text("\n".join(token.scopes)),
            Text(printable(token.node, CELL_CHARS)), Text(_time(token.expires_at)),
            Text(token.state, style=STATES.get(token.state, "yellow")),
        )  # fmt: skip
    terminal.out.print(table)


def revoke_tokens(terminal: Terminal, id: str | None, *, node: str, every: bool) -> None:
    """Revoke one token, one node, or all. Raises `TokenError` for an unknown one."""
    if sum(map(bool, (id, node, every))) != 1:
        raise Refused("give the id of a token, or --node NODE, or --all")
    dicast = application(terminal)
    try:
        message, ended = _revoke(dicast, id, node)
    except StoreUsersUnavailable as error:
        dicast.audit.record(operator(), "token revoke", id or node or "all", "done in part", {"store": str(error)})
        raise Refused(f"the tokens are revoked, but the nodes' users of the store still exist: {error}") from None
    dicast.audit.record(operator(), "token revoke", id or node or "all", "done", {"ended": ended})
    terminal.say(message)


def _revoke(dicast: Dicast, id: str | None, node: str) -> tuple[str, int]:
    """Revoke a token, a node, or all (neither given). Return what was done, and how many tokens or nodes were
    revoked."""
    membership = dicast.membership
    if id:
        ended = membership.revoke(id)
        nodes = len({token.node for token in ended if token.parent})
        return f"Token {id} is revoked, and so are {nodes} nodes that joined with it.", len(ended)
    if node:
        all_nodes = {token.node for token in dicast.tokens.list()} | set(dicast.store_users.nodes())
        if not all_nodes & {node} and not any(id.rpartition("#")[0] == node for id in all_nodes):
            raise Refused(f"no token is bound to a node {node!r}; `dicast token list` shows all")
        closed = membership.expel(node)
        return f"Node {node} is revoked; {closed} of its connections to the store were closed.", 1
    count = membership.revoke_all()
    return f"All tokens are revoked, and {count} nodes that joined over HTTP are put out.", count


def rotate_key(terminal: Terminal, overlap: str) -> None:
    dicast, overlap_s = application(terminal), seconds("--overlap", overlap)
    number = dicast.tokens.rotate(overlap_s)
    dicast.audit.record(operator(), "token rotate", str(number), "done", {"overlap_s": overlap_s})
    terminal.say(f"Key {number} signs from now on; the one before is accepted for {overlap_s:,.0f} s more.")


def show_audit(terminal: Terminal, newest: int, *, json: bool) -> None:
    """Show the newest lines of all parts, by their times, and how many counted events have no line yet."""
    dicast = application(terminal)
    entries = [] if dicast.nothing_stored else dicast.audit.entries(newest)
    if json:
        for part, line in entries:
            terminal.emit(orjson.dumps({**asdict(line), "part": part}).decode())
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("line", "time", "actor", "action", "object", "outcome", "details"):
        table.add_column(title, no_wrap=title in ("line", "time"), overflow="fold")
    for part, line in entries:
        details = orjson.dumps(line.details).decode() if line.details else ""
        cells = (line.actor, line.action, line.object, line.outcome, details)
        table.add_row(
            Text(f"{part.key} {line.number}".lstrip()), Text(_time(line.at)),
            *(Text(printable(word, CELL_CHARS)) for word in cells),
        )  # fmt: skip
    if table.row_count:
        terminal.out.print(table)
    else:
        terminal.say("There are no lines.")
    if not dicast.nothing_stored and (pending := dicast.audit.pending()):
        terminal.say(f"{pending:,} more are counted, and become lines when their minute is over and a server runs.")


def verify_audit(terminal: Terminal, *, json: bool) -> Exit:
    """Say whether the log is intact. Returns `Exit.FAILED` if it is not."""
    dicast = application(terminal)
    finding = AuditFinding(0, 1) if dicast.nothing_stored else dicast.audit.verify()
    code = Exit.OK if finding.whole else Exit.FAILED
    if json:
        document = {"whole": finding.whole, **asdict(finding)}
        terminal.emit(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
        return code
    if finding.first > 1:
        terminal.say(f"Orders 1 to {finding.first - 1:,} are dropped; the check begins with their sealed hash.")
    if finding.displaced:
        terminal.say(f"Of {finding.displaced:,} lines more only the counts are held: `dicast audit show` has them.")
    if finding.weak:
        terminal.say(
            f"{finding.weak:,} lines are from before there was a DICAST_TOKEN_SECRET: whoever could read the store "
            "then could have written them.", "yellow",
        )  # fmt: skip
    if finding.whole:
        terminal.say(f"The audit log is whole: {finding.lines:,} lines.", "green")
    else:
        part = f" of the part '{finding.part}'"
        terminal.say(f"The audit log is broken at line {finding.broken}{part}: {finding.problem}.", "red")
    return code


def seconds(option: str, text: str) -> float:
    """Parse a duration as it is given to an option. Raises `Refused`."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d+)?)([smhd]?)", text, re.ASCII)
    if match is None:
        raise Refused(f"{option} must be a number of seconds, or one with s, m, h or d, got {text!r}")
    return float(match[1]) * UNITS[match[2]]


def _time(at: float) -> str:
    return f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M:%S}"
