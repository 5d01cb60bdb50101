"""What a host is told to have besides its processors."""

from __future__ import annotations

from dicast.workers.system.host import accelerators


def test_a_host_without_any(tmp_path):
    assert accelerators(tmp_path) == ()


def test_those_of_nvidias_driver(tmp_path):
    for number, text in enumerate(["Model: \t NVIDIA H100 80GB\nIRQ: 5\n", "IRQ: 6\n"]):
        folder = tmp_path / f"proc/driver/nvidia/gpus/0000:0{number}"
        folder.mkdir(parents=True)
        (folder / "information").write_text(text)
    assert accelerators(tmp_path) == ("NVIDIA H100 80GB", "NVIDIA")


def test_those_of_amds_driver(tmp_path):
    (tmp_path / "dev/dri").mkdir(parents=True)
    (tmp_path / "dev/kfd").touch()
    for name in ("renderD128", "renderD129", "card0"):
        (tmp_path / "dev/dri" / name).touch()
    assert accelerators(tmp_path) == ("AMD", "AMD")
