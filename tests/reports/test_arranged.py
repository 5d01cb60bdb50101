"""Items in the order in which they are judged: all there, whole or not at all, the same for whoever arranges them."""

from __future__ import annotations

import errno
import random
from collections import Counter
from itertools import chain

import pytest

from dicast.app.domain.arrangement import Arrangement, ExpectedItems, Shuffle
from dicast.app.domain.item import Item
from dicast.app.reports import stored_items
from dicast.app.reports.stored_items import ARRANGED, ItemCountMismatch, is_arranged, read_arranged, write_arranged


class Twice:
    """Each item becomes as many as its metadata says."""

    def count(self, item):
        return item.metadata.get("times", 1)

    def items(self, item):
        for n in range(self.count(item)):
            yield item.model_copy(update={"id": f"{item.id}.{n}"})


class First:
    """The first two items have three variants each."""

    def count(self, items):
        return 3 * min(items, 2)

    def chosen(self, items):
        return range(min(items, 2))

    def variants(self, item, place, items):
        for n in range(3):
            yield item.model_copy(update={"id": f"{item.id}~{n}", "text": item.text.upper()})


def an_item(n, **metadata):
    return Item(id=f"i{n}", text=f"text {n}", metadata=metadata)


def written(folder, items, arrangement, seed="s"):
    expected = ExpectedItems(arrangement)
    for item in items:
        expected.add(item)
    write_arranged(folder, iter(items), arrangement, random.Random(seed), expected.total)
    found, offset, more = [], None, True
    while more:
        page, offset = read_arranged(folder, offset, 7)
        found += page
        more = offset is not None
    assert len(found) == expected.total
    return found


def test_all_steps_together(tmp_path):
    items = [an_item(n, times=n % 3) for n in range(20)]
    found = written(tmp_path, items, Arrangement(Twice(), Shuffle("s"), First()))
    own = [f"i{n}.{k}" for n in range(20) for k in range(n % 3)]
    assert sorted(item.id for item in found[: len(own)]) == sorted(own)
    assert [item.id for item in found[: len(own)]] != own
    assert [item.id for item in found[len(own) :]] == [f"{name}~{k}" for name in own[:2] for k in range(3)]
    assert {item.text for item in found[len(own) :]} == {"TEXT 1", "TEXT 2"}
    assert all(item.metadata == {"times": int(item.id[1:].split(".")[0]) % 3} for item in found[: len(own)])


@pytest.mark.parametrize("arrangement", [Arrangement(expand=Twice()), Arrangement(vary=First())])
def test_without_a_shuffle_the_order_stays(tmp_path, arrangement):
    found = written(tmp_path, [an_item(n, times=2) for n in range(5)], arrangement)
    own = [name for n in range(5) for name in ([f"i{n}.0", f"i{n}.1"] if arrangement.expand else [f"i{n}"])]
    varied = [f"i{n}~{k}" for n in range(2) for k in range(3)] if arrangement.vary else []
    assert [item.id for item in found] == own + varied


def test_the_seed_decides_the_order_and_nothing_else_does(tmp_path):
    items = [an_item(n) for n in range(200)]
    first, again, other = (
        [item.id for item in written(tmp_path, items, Arrangement(shuffle=Shuffle(seed)), seed)] for seed in "aab"
    )
    assert first == again != other
    assert sorted(first) == sorted(other)


def test_every_place_is_as_likely_for_every_item():
    """Chi squared over 6 orders of 3 items in 6,000 draws: 20.5 is passed by chance once in a thousand."""
    chance = random.Random(1)
    orders = Counter(tuple(Shuffle("s").order([2, 2, 2], chance)) for _ in range(6000))
    assert len(orders) == 6
    assert sum((count - 1000) ** 2 / 1000 for count in orders.values()) < 20.5


def test_two_groups_take_turns_and_others_come_last(tmp_path):
    items = [an_item(n, system="ab"[n % 2] if n < 11 else "c") for n in range(15)]
    group = Shuffle("s", lambda item: {"a": 0, "b": 1}.get(item.metadata["system"]))
    found = [item.metadata["system"] for item in written(tmp_path, items, Arrangement(shuffle=group))]
    assert found == [*chain.from_iterable(["a", "b"] for _ in range(5)), "a", *["c"] * 4]


def test_other_items_than_were_counted_leave_no_file(tmp_path):
    with pytest.raises(ItemCountMismatch, match="3 items come out, and 4 were counted"):
        write_arranged(tmp_path, map(an_item, range(3)), Arrangement(shuffle=Shuffle("s")), random.Random(1), 4)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_no_file_and_names_the_one_that_is_missing(tmp_path, monkeypatch):
    class Full:
        def __init__(self, dir):
            self.file = (dir / "spool").open("w+b")

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()
            (tmp_path / "spool").unlink()

        def write(self, line):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(stored_items, "TemporaryFile", Full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_arranged(tmp_path, map(an_item, range(3)), Arrangement(shuffle=Shuffle("s")), random.Random(1), 3)
    assert caught.value.filename == str(tmp_path / ARRANGED)
    assert not is_arranged(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_page_ends_with_the_item_that_fills_it(tmp_path):
    items = [Item(id=f"i{n}", text="x" * size) for n, size in enumerate([1, 1, 50, 1, 99])]
    written(tmp_path, items, Arrangement(vary=First()))
    page, offset = read_arranged(tmp_path, None, 9, 50)
    assert [item.id for item in page] == ["i0", "i1", "i2"]
    assert [item.id for item in read_arranged(tmp_path, offset, 2)[0]] == ["i3", "i4"]
