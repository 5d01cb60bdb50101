"""The fault proxy does to connections what it is told, and nothing else."""

import asyncio
import socket
import threading
import time

import pytest

from lab.chaos.installation import Link
from lab.chaos.proxy import Proxy


@pytest.fixture
def echo():
    """host:port of a server that says everything again."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=repeat, args=(connection,), daemon=True).start()

        def repeat(connection):
            with connection:
                try:
                    while data := connection.recv(1000):
                        connection.sendall(data)
                except OSError:
                    return

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)  # closing alone does not wake who waits for a connection
        serving.join(timeout=5)
        assert not serving.is_alive()


@pytest.fixture
def link(echo):
    link = Link(echo)
    yield link
    link.stop()


@pytest.fixture
def client(link):
    with socket.create_connection(("127.0.0.1", link.port), timeout=5) as client:
        yield client


def says(client, word=b"x"):
    client.sendall(word)
    return client.recv(1000) == word


def test_it_carries_and_delays(link, client):
    assert says(client)
    link.set(delay_s=0.2)
    began = time.monotonic()
    assert says(client)
    assert time.monotonic() - began >= 0.39, "each way 0.2 s, of which a timer may leave out a tick"
    link.set()
    assert says(client)


def test_it_resets_at_data_until_healed(link, client):
    link.set(reset=True)
    with pytest.raises(ConnectionResetError):
        says(client)
    link.set()
    with socket.create_connection(("127.0.0.1", link.port), timeout=5) as again:
        assert says(again)


def test_it_loses_answers_to_what_was_asked_and_not_to_a_greeting(link, client):
    link.set(lose=1.0, late_s=0.01)
    assert says(client, b"*1\r\n$5\r\nHELLO\r\n")
    with pytest.raises(ConnectionResetError):
        says(client)
    link.set()
    with socket.create_connection(("127.0.0.1", link.port), timeout=5) as again:
        assert says(again)


@pytest.mark.parametrize("hold", [["up"], ["down"], ["up", "down"]])
def test_what_is_held_arrives_in_the_end(link, client, hold):
    link.set(hold=hold)
    client.settimeout(0.3)
    with pytest.raises(TimeoutError):
        says(client)
    link.set()
    client.settimeout(5)
    assert client.recv(1000) == b"x"


def test_it_refuses_and_cuts(link, client):
    link.set(refuse=True)
    with pytest.raises(ConnectionResetError):
        says(client)
    with pytest.raises(ConnectionError), socket.create_connection(("127.0.0.1", link.port), timeout=5) as other:
        assert says(other)
    link.set()
    with socket.create_connection(("127.0.0.1", link.port), timeout=5) as again:
        assert says(again)
        link.set(cut=True)
        with pytest.raises(ConnectionError):
            assert says(again)


@pytest.mark.parametrize("wish", ["refuse", "cut"])
def test_it_refuses_and_cuts_what_is_not_yet_connected_to_its_target(echo, monkeypatch, wish):
    async def main():
        asked, allowed, connect = asyncio.Event(), asyncio.Event(), asyncio.open_connection

        async def slowly(*target):
            asked.set()
            await allowed.wait()
            return await connect(*target)

        monkeypatch.setattr(asyncio, "open_connection", slowly)
        proxy = Proxy(echo)
        reader, writer = await connect("127.0.0.1", await proxy.listen())
        writer.write(b"x")
        await asked.wait()
        proxy.obey({wish: True})
        allowed.set()
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(1000), 5)
        writer.close()

    asyncio.run(main())
