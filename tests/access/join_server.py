"""A server that nodes join: their three routes over `Membership`, and nothing else."""

from __future__ import annotations

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from dicast.app.access.membership import Membership
from dicast.app.access.scopes import Scope, TokenRejected
from dicast.app.access.tokens import TokenError, Tokens


class JoinServer:
    """On a port of its own until it is stopped. `answers` counts statuses by method; `known` are the nodes that it has
    not forgotten."""

    def __init__(self, tokens: Tokens, membership: Membership, heartbeat_s: float = 0.1) -> None:
        self.tokens, self.membership, self.heartbeat_s = tokens, membership, heartbeat_s
        self.known: set[str] = set()
        self.answers: list[tuple[str, int]] = []
        self.broken = 0
        """A status that is answered instead of all others."""
        self.shown: set[str] = set()
        """Heartbeat tokens that nodes have shown."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self._answer("POST")

            def do_DELETE(self) -> None:
                self._answer("DELETE")

            def _answer(self, method: str) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                token = self.headers.get("authorization", "").removeprefix("Bearer ")
                status, reply = outer.handle(method, self.path, token, json.loads(body or b"{}"))
                outer.answers.append((method, status))
                packed = json.dumps(reply).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(packed)))
                self.end_headers()
                self.wfile.write(packed)

            def log_message(self, *_: Any) -> None:
                """Nobody reads it."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.port = self._http.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def encrypt(self, context: ssl.SSLContext) -> None:
        """From now on by TLS, to whoever connects newly."""
        self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        self.url = self.url.replace("http://", "https://")

    def handle(self, method: str, path: str, token: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        _, _, _, node, *_rest = [*path.split("/"), "", ""]
        node = unquote(node)
        if self.broken:
            return self.broken, {"detail": "broken"}
        try:
            if not node:
                claims = self.tokens.verify(token, Scope.NODE_REGISTER)
                joined = self.membership.join(
                    claims, body["name"], was=body.get("node", ""), old_token=body.get("heartbeat_token")
                )
                self.known.add(joined.node)
                return 201, joined.as_response(self.heartbeat_s)
            claims = self.tokens.verify(token, Scope.NODE_HEARTBEAT, node=node)
            self.shown.add(token)
            if node not in self.known:
                return 404, {"detail": "there is no such node"}
            if method == "DELETE":
                self.known.discard(node)
                self.membership.leave(node)
                return 200, {}
            renewed = self.membership.renewed(claims)
            return 200, {"heartbeat_token": renewed[0], "expires_in_s": renewed[1]} if renewed else {}
        except TokenRejected as refused:
            return 403 if refused.reason in ("scope", "node") else 401, {"detail": str(refused)}
        except TokenError as wrong:
            return 422, {"detail": str(wrong)}

    def stop(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
