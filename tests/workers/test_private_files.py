"""What Dicast keeps by itself is read by nobody else, whatever the umask, unless a folder says otherwise."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from dicast.app.reports.folders import begin, replacing
from dicast.workers.system.files import create, make_folder, open_or_create


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct, autouse=True)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_files_and_folders_are_for_their_owner(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b")
    create(tmp_path / "a" / "new").close()
    with open_or_create(tmp_path / "a" / "log") as file:
        file.write(b"one")
    with replacing(tmp_path / "a" / "whole") as file:
        file.write(b"two")
    assert {path.name: oct(mode(path)) for path in (tmp_path / "a").iterdir()} == {
        "b": "0o700", "new": "0o600", "log": "0o600", "whole": "0o600",
    }  # fmt: skip
    with pytest.raises(FileExistsError):
        create(tmp_path / "a" / "new")


@pytest.mark.parametrize(("folder", "inside", "file"), [(0o2770, 0o2770, 0o660), (0o2750, 0o2750, 0o640)])
def test_a_folder_with_the_setgid_bit_is_shared_with_its_group(
    tmp_path: Path, folder: int, inside: int, file: int
) -> None:
    root = tmp_path / "results"
    root.mkdir()
    root.chmod(folder)
    begin(root, "job", "i1")
    assert (mode(root / "job"), mode(root / "job" / "incarnation")) == (inside, file)
    make_folder(root / "job" / "parts" / "i1")
    open_or_create(root / "job" / "parts" / "i1" / "lock").close()
    assert mode(root / "job" / "parts" / "i1") == inside
    assert mode(root / "job" / "parts" / "i1" / "lock") == file
    assert (root / "job" / "parts").stat().st_gid == root.stat().st_gid
    make_folder(root / "state" / "store", shared=False)
    assert mode(root / "state") & 0o077 == mode(root / "state" / "store") & 0o077 == 0


def test_group_permissions_without_the_bit_share_nothing(tmp_path: Path) -> None:
    """They are what the umask of some mkdir happened to leave."""
    root = tmp_path / "results"
    root.mkdir()
    root.chmod(0o775)
    begin(root, "job", "i1")
    assert (mode(root / "job"), mode(root / "job" / "incarnation")) == (0o700, 0o600)


def test_what_is_there_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there").chmod(0o755)
    (tmp_path / "there" / "log").write_bytes(b"old")
    (tmp_path / "there" / "log").chmod(0o644)
    make_folder(tmp_path / "there")
    with open_or_create(tmp_path / "there" / "log") as file:
        file.write(b" new")
    assert (mode(tmp_path / "there"), mode(tmp_path / "there" / "log")) == (0o755, 0o644)
    assert (tmp_path / "there" / "log").read_bytes() == b"old new"
    with pytest.raises(FileExistsError):
        make_folder(tmp_path / "there" / "log")


def test_what_somebody_asks_for_is_as_the_umask_says(tmp_path: Path, umask: int) -> None:
    with replacing(tmp_path / "export.csv", private=False) as file:
        file.write(b"a,b")
    assert mode(tmp_path / "export.csv") == 0o666 & ~umask
