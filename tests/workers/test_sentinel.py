"""Addresses of a store behind Sentinel; tests/e2e/test_failover.py has the servers."""

import pytest

from dicast.workers.store.connection import connect
from dicast.workers.store.sentinel import SentinelAddress


def test_all_of_an_address():
    address = SentinelAddress.parse(
        "sentinel://me:p%2Fw@a:1;sentinel://b;sentinel://[::1]:3/2"
        "?master=m&sentinel_username=s&sentinel_password=t&ssl=true&ssl_ca_certs=/ca"
    )
    assert address.sentinels == (("a", 1), ("b", 26379), ("::1", 3))
    tls = {"ssl": True, "ssl_cert_reqs": "required", "ssl_ca_certs": "/ca"}
    assert address.working() == {"db": 2, "username": "me", "password": "p/w", **tls}
    asking = address.asking()
    assert {name: asking[name] for name in ("username", "password", *tls)} == {"username": "s", "password": "t", **tls}
    assert address.url() == "sentinel://me:p%2Fw@a:1/2;sentinel://me:p%2Fw@b:26379/2;sentinel://me:p%2Fw@[::1]:3/2"


def test_what_is_not_said():
    address = SentinelAddress.parse("sentinel://a")
    assert (address.sentinels, address.master, address.db, address.ssl) == ((("a", 26379),), "mymaster", 0, None)
    assert address.working() == {"db": 0}


@pytest.mark.parametrize(
    "url",
    [
        "sentinel://",
        "sentinel://a;redis://b",
        "sentinel://a/0;sentinel://b/1",
        "sentinel://a/zero",
        "sentinel://a:port",
        "sentinel://a?mastre=m",
        "sentinel://a?ssl=yes",
        "sentinel://a?ssl_ca_certs=/ca",
    ],
)
def test_mistakes(url):
    with pytest.raises(ValueError):
        connect(url)
