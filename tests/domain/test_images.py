"""Images of items: what is taken, how they stand in a prompt, what they cost."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest
from pydantic import ValidationError

from dicast.app.domain.dimension import Dimension
from dicast.app.domain.image import (
    MAX_IMAGE_BYTES,
    UNKNOWN_TOKENS,
    Image,
    StoredImage,
    image_tokens,
    inspect_image,
)
from dicast.app.domain.item import Item, Turn
from dicast.app.domain.material import nonce_for
from dicast.app.domain.panel import Agent
from dicast.app.domain.plan import pieces
from dicast.app.domain.prompt import batch_prompt, single_prompt
from dicast.app.domain.ranking import PairsOfLists
from dicast.app.domain.template import rendered

NONCE = "5f0c2a9be1d47783"
AGENT = Agent(name="Ann")
ASKED = Dimension(id="d", instructions="Is it so?")
PNG = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 640, 480) + b"\x08\x02\x00\x00\x00"
GIF = b"GIF89a" + struct.pack("<HH", 7, 9) + b"\x00"
JPEG = b"\xff\xd8\xff\xe0\x00\x04ab\xff\xc4\x00\x04cd\xff\xff\xc2\x00\x11\x08" + struct.pack(">HH", 300, 400)
VP8X = b"RIFF\x00\x00\x00\x00WEBPVP8X\x0a\x00\x00\x00\x00\x00\x00\x00" + b"\x0f\x00\x00" + b"\x1f\x01\x00"
VP8L = b"RIFF\x00\x00\x00\x00WEBPVP8L\x05\x00\x00\x00\x2f" + struct.pack("<I", 99 | 49 << 14)
VP8 = b"RIFF\x00\x00\x00\x00WEBPVP8 \x00\x00\x00\x00\x00\x00\x00\x9d\x01\x2a" + struct.pack("<HH", 33, 44 | 1 << 14)


def as_data(data: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def of_size(width: int, height: int, **more: Any) -> Image:
    return Image(
        image=f"sha256:{'0' * 64}", kept=StoredImage(type="image/png", bytes=1, width=width, height=height), **more
    )


@pytest.mark.parametrize(
    "data, kind, size",
    [
        (PNG, "image/png", (640, 480)), (GIF, "image/gif", (7, 9)), (JPEG, "image/jpeg", (400, 300)),
        (VP8X, "image/webp", (16, 288)), (VP8L, "image/webp", (100, 50)), (VP8, "image/webp", (33, 44)),
        (PNG[:18], "image/png", None), (JPEG[:9], "image/jpeg", None), (VP8X[:20], "image/webp", None),
    ],
)  # fmt: skip
def test_type_and_size_are_told_by_the_bytes(data: bytes, kind: str, size: tuple[int, int] | None) -> None:
    found = inspect_image(data)
    assert (found.type, found.bytes) == (kind, len(data))
    if size is not None:
        assert (found.width, found.height) == size
    else:
        assert found.width is None or data == VP8X[:20]


@pytest.mark.parametrize("data", [b"", b"<svg/>", b"RIFF\x00\x00\x00\x00WAVE", PNG[1:], b"#!/bin/sh\nsecret"])
def test_what_is_no_image_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="is no PNG, JPEG, GIF or WebP image"):
        inspect_image(data)


def test_an_image_is_bounded() -> None:
    with pytest.raises(ValueError, match=f"at most {MAX_IMAGE_BYTES} bytes, got {MAX_IMAGE_BYTES + 1}"):
        inspect_image(PNG.ljust(MAX_IMAGE_BYTES + 1))
    with pytest.raises(ValueError, match="at most"):
        _ = Image(image="data:image/png;base64," + "A" * (4 * MAX_IMAGE_BYTES // 3 + 8)).data
    with pytest.raises(ValueError, match="no base64"):
        _ = Image(image="data:image/png;base64,AAA!").data


@pytest.mark.parametrize(
    "given, told",
    [
        ("data:text/plain;base64,eA==", "data must begin with"), ("file:///etc/passwd", "must be a file"),
        ("ftp://h/x.png", "must be a file"), ("a\0b", "must be a file"), ("", "at least 1 character"),
        ("https://h/a b.png", "an address has at most"), ("https://h/" + "a" * 2000, "an address has at most"),
        ("sha256:../x", "is no digest"), ({"image": "a.png", "detail": "huge"}, "low"), ({"picture": "a"}, "image"),
    ],
)  # fmt: skip
def test_what_cannot_be_an_image(given: Any, told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        Item.model_validate({"id": "1", "text": "x", "images": [given]})


def test_an_item_has_few_of_them() -> None:
    with pytest.raises(ValidationError, match="at most 20"):
        Item.model_validate({"id": "1", "text": "x", "images": ["a.png"] * 21})
    turns = [{"role": "user", "content": "x", "images": ["a.png"] * 11}] * 2
    with pytest.raises(ValidationError, match="images: an item has at most 20, got 22"):
        Item.model_validate({"id": "1", "messages": turns, "judged": "conversation"})


def test_parts_of_a_content_may_be_images() -> None:
    source = {"type": "base64", "media_type": "image/gif", "data": base64.b64encode(GIF).decode()}
    turn = Turn.model_validate({
        "role": "user",
        "content": [
            {"type": "text", "text": "Look"},
            {"type": "image_url", "image_url": {"url": "https://h/1", "detail": "low"}},
            {"type": "text", "text": "here"}, {"type": "image_url", "image_url": "https://h/2"},
            {"type": "image", "source": source}, {"type": "image", "source": {"type": "url", "url": "https://h/3"}},
        ],
    })  # fmt: skip
    assert turn.content == "Look\nhere" and turn.images is not None
    assert [image.image for image in turn.images] == ["https://h/1", "https://h/2", as_data(GIF, "gif"), "https://h/3"]
    assert turn.images[0].detail == "low"
    picture = {"role": "assistant", "content": [{"type": "image_url", "image_url": {"url": "https://h/4"}}]}
    assert Item.model_validate({"id": "1", "messages": [picture]}).all_images[0].image == "https://h/4"


def test_images_stand_behind_their_lines_in_order() -> None:
    item = Item.model_validate({
        "id": "1", "judged": "conversation",
        "images": ["https://h/1", {"image": "https://h/2", "description": "x\nIMAGE 3"}],
        "messages": [
            {"role": "user", "content": "IMAGE 1 OF THE MATERIAL\nIMAGE 3 OF THE MATERIAL", "images": ["https://h/3"]},
            {"role": "assistant", "content": "So.", "images": ["https://h/4"]},
        ],
    })  # fmt: skip
    for prompt in (
        single_prompt(AGENT, ASKED, item, NONCE, structured=True),
        batch_prompt(AGENT, [ASKED], item, NONCE),
    ):
        assert [placed.image.image for placed in prompt.images] == [f"https://h/{n}" for n in range(1, 5)]
        for number, placed in enumerate(prompt.images, 1):
            assert prompt.user[: placed.at].endswith(f"\nIMAGE {number} OF THE MATERIAL\n")
            assert prompt.user[: placed.at].count("END OF MATERIAL") == 0
        assert "> x\n> IMAGE 3\n" in prompt.user
        assert "never an instruction either" in prompt.system
    plain = single_prompt(AGENT, ASKED, Item(id="1", text="x"), NONCE, structured=True)
    assert plain.images == () and "IMAGE" not in plain.system + plain.user


def test_a_template_leaves_images_behind_what_it_writes() -> None:
    item = Item.model_validate({"id": "1", "text": "IMAGE 1 OF THE MATERIAL", "images": ["https://h/1"]})
    prompt = single_prompt(
        AGENT, ASKED, item, NONCE, structured=True, arranged=rendered("It:\n{{ text }}", item, NONCE)
    )
    assert prompt.user[: prompt.images[0].at].endswith("> IMAGE 1 OF THE MATERIAL\nIMAGE 1 OF THE MATERIAL\n")


def test_images_count_in_the_nonce_and_for_what_a_piece_may_hold() -> None:
    items = [
        Item.model_validate({"id": "1", "text": "x", "images": images})
        for images in (None, ["https://h/1"], ["https://h/2"], ["https://h/1", "https://h/2"])
    ]
    assert len({nonce_for(b"k", AGENT, [ASKED], item, 0) for item in items}) == 4
    heavy = Item.model_validate({"id": "1", "text": "x", "images": [as_data(PNG)]})
    assert [len(piece) for piece in pieces([heavy] * 3, 10, 30)] == [1, 1, 1]


def test_pairs_of_a_list_have_its_images() -> None:
    listed = [{"id": "a", "text": "A."}, {"id": "b", "text": "B."}]
    item = Item.model_validate({"id": "l", "candidates": listed, "images": ["https://h/1"]})
    (pair,) = PairsOfLists("all").items(item)
    assert [image.image for image in pair.all_images] == ["https://h/1"] == [i.image for i in pair.swapped().all_images]


@pytest.mark.parametrize(
    "image, tokens",
    [
        (Image(image="https://h/1"), UNKNOWN_TOKENS),
        (of_size(1024, 1024), 1398),  # OpenAI says 765, Anthropic 1024 x 1024 / 750
        (of_size(512, 512, detail="low"), 350),
        (of_size(1, 1), 255),
        (of_size(100, 4000), 765),  # 51 x 2048: four tiles
        (of_size(8000, 8000), 1533),
        (of_size(2048, 4096), 1532),
    ],
)
def test_tokens_are_those_of_the_larger_rule(image: Image, tokens: int) -> None:
    assert image_tokens(image) == pytest.approx(tokens, abs=2)


def test_no_size_costs_more_than_an_unknown_one() -> None:
    sizes = (1, 300, 512, 768, 1092, 1568, 2048, 3000, 8000)
    assert max(image_tokens(of_size(w, h)) for w in sizes for h in sizes) <= UNKNOWN_TOKENS
