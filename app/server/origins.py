"""Checks the origin of a request: it must not come from another site's page, nor be for another host name."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

from fastapi import Request

from dicast.app.server.errors import ForeignRequest

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


def is_loopback(host: str) -> bool:
    """Return whether the host is a loopback address or `localhost`."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def check(request: Request, hosts: frozenset[str] | None) -> None:
    """Raise `ForeignRequest` for a request that must not be answered.

    On a loopback address a page of any site can reach the server, under a name that resolves there (DNS rebinding):
    only requests for the server's own names are answered. A request that changes something must come from a page of
    this server, or from no page.
    """
    host = request.headers.get("host", "")
    if hosts is not None and _name(host) not in hosts:
        raise ForeignRequest(f"this server is not {host[:100]!r}; DICAST_SERVER_NAMES lists further names of it")
    if request.method in _SAFE:
        return
    if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise ForeignRequest("the request comes from another site's page")
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
        raise ForeignRequest(f"the request comes from a page of {origin[:100]!r}")


def _name(host: str) -> str:
    """Return the name in a Host header, in lower case, without port, brackets or the root's dot."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""
