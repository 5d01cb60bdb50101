"""What waiting can mend, asked of real servers' words and of redis-py's own errors."""

import pytest
import redis
from redis._parsers.base import BaseParser
from redis.exceptions import RedisError

from dicast.workers.store.connection import NotReady, is_passing


def refusal(words: str) -> RedisError:
    """The error that redis-py makes of a server's reply."""
    error: RedisError = BaseParser.parse_error(words)
    return error


@pytest.mark.parametrize(
    "words, passing",
    [
        ("READONLY You can't write against a read only replica.", True),
        ("READONLY You can't write against a read only replica. script: 3f2a, on @user_script:14.", True),
        ("OOM command not allowed when used memory > 'maxmemory'.", True),
        ("LOADING Redis is loading the dataset in memory", True),
        ("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", True),
        ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", True),
        ("MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.", True),
        ("NOREPLICAS Not enough good replicas to write.", True),
        ("TRYAGAIN Multiple keys request during rehashing of slot", True),
        ("CLUSTERDOWN The cluster is down", True),
        ("NOSCRIPT No matching script. Please use EVAL.", True),
        ("ERR max number of clients reached", True),
        ("NOAUTH Authentication required.", True),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", False),
        ("BUSYGROUP Consumer Group name already exists", False),
        ("NOPERM this user has no permissions to run the 'eval' command", False),
        ("ERR user_script:14: attempt to compare nil with number script: 3f2a, on @user_script:14.", False),
        ("ERR value is not an integer or out of range", False),
        ("no words that begin as a server's", False),
    ],
)
def test_a_refusal_passes_by_its_first_word(words: str, passing: bool) -> None:
    assert is_passing(refusal(words)) is passing


@pytest.mark.parametrize(
    "error, passing",
    [
        (redis.ConnectionError("Connection refused"), True),
        (redis.TimeoutError("Timeout reading from socket"), True),
        (redis.exceptions.InvalidResponse("Protocol Error: b'HTTP'"), True),
        (NotReady("not heard yet"), True),
        (redis.ReadOnlyError(), True),
        (redis.exceptions.OutOfMemoryError(), True),
        (ConnectionResetError(104, "reset"), True),
        (TimeoutError(), True),
        (redis.DataError("Invalid input of type: 'dict'"), False),
        (OSError(28, "No space left on device"), False),
        (FileNotFoundError(2, "gone"), False),
        (ValueError("x"), False),
        (KeyError("x"), False),
    ],
)
def test_an_error_on_this_side_passes_by_its_class(error: BaseException, passing: bool) -> None:
    assert is_passing(error) is passing


@pytest.mark.parametrize("words, passing", [("MISCONF cannot persist", True), ("WRONGTYPE wrong kind", False)])
def test_a_pipelines_words_before_the_servers_change_nothing(words: str, passing: bool) -> None:
    error = refusal(words)
    redis.client.Pipeline(redis.ConnectionPool(), {}, False, None).annotate_exception(error, 3, ["SET", "a (b)", "1"])
    assert str(error).startswith("Command # 3")
    assert is_passing(error) is passing
