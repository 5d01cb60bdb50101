import orjson
import pytest

from dicast.workers.broker.dead_letters import SIGNATURE, is_signed, read_message, signature

KEY = "k" * 32
HEADERS = {"task": "t", "id": "1", "retries": 0, "timelimit": [None, None], "dicast": {"job": "j"}, "lang": "py"}
BODY = '[["j", 0], {}, {"chord": null}]'


def signed(**changes):
    headers = {**HEADERS, **changes}
    return {**headers, SIGNATURE: signature(KEY, headers, BODY)}


def test_a_message_is_signed_on_its_way_too():
    headers = orjson.loads(orjson.dumps(signed(timelimit=(None, None))))
    assert is_signed(KEY, headers, BODY)
    assert is_signed(KEY, {**headers, "origin": "elsewhere"}, BODY.encode())


@pytest.mark.parametrize(
    "headers",
    [HEADERS, {**signed(), "task": "other"}, {**signed(), "id": "2"}, {**signed(), "dicast": {"job": "k"}},
     {**HEADERS, SIGNATURE: ""}, {**HEADERS, SIGNATURE: 7}, {**HEADERS, SIGNATURE: "é"}],
)  # fmt: skip
def test_what_is_not_signed_like_this_is_not_signed(headers):
    assert not is_signed(KEY, headers, BODY)


def test_neither_another_body_nor_another_key_will_do():
    assert not is_signed(KEY, signed(), BODY + " ")
    assert not is_signed("l" * 32, signed(), BODY)


MESSAGE = {
    "body": "W10=", "headers": {}, "content-type": "application/json",
    "properties": {
        "delivery_tag": "1", "body_encoding": "base64", "delivery_info": {"exchange": "", "routing_key": "q"},
    },
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [{"body": 3}, {"headers": []}, {"properties": None}, {"properties": {}},
     {"properties": {**MESSAGE["properties"], "body_encoding": "rot13"}}],
)  # fmt: skip
def test_what_kombu_cannot_read_is_known(change):
    assert read_message(orjson.dumps(MESSAGE)) == MESSAGE
    assert read_message(orjson.dumps({**MESSAGE, **change})) is None


@pytest.mark.parametrize("raw", [b"", b"\xff\x00", b"[]", b"null", b"1e999", b"[" * 100_000])
def test_garbage_is_not_readable(raw):
    assert read_message(raw) is None


@pytest.mark.parametrize("kind, value", [("decimal", "x"), ([], 1), ("datetime", 5), ("bytes", 5), ("nobody's", 1)])
def test_a_typed_value_that_kombu_cannot_make_is_no_message(kind, value):
    headers = {**MESSAGE["headers"], "eta": {"__type__": kind, "__value__": value}}
    assert read_message(orjson.dumps({**MESSAGE, "headers": headers})) is None
