"""Images of items: looked at before a job is taken, refused over HTTP where they are files, kept when it starts."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dicast.app import datasets
from dicast.app.application import create_app
from dicast.app.domain.image import MAX_IMAGE_BYTES, ImageError
from dicast.app.domain.item import Item, ItemSource
from dicast.app.domain.job import EvaluationJob
from dicast.app.domain.prompt import PlacedImage
from dicast.app.domain.refusals import InvalidJob, JobRefused
from dicast.app.pipeline.images import StoredImages, image_storer
from dicast.app.reports.folders import begin, own_folder
from dicast.app.submission import images as submitted
from dicast.app.submission.job_file import load_job

PNG = b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + b"\0\0\0\x02\0\0\0\x03" + b"\x08\x02\0\0\0"
DATA = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
POOLS = """
default = "sim"
[pools.sim]
provider = "simulated"
[pools.blind]
provider = "openai"
model = "gpt-4.1-mini"
[pools.seeing]
provider = "openai"
model = "gpt-4.1-mini"
images = true
"""


@pytest.fixture
def app(environ):
    Path(environ["DICAST_POOLS_FILE"]).write_text(POOLS)
    app = create_app(environ)
    yield app
    app.close()


def a_job(*images: Any, pool: str = "", **more: Any) -> dict[str, Any]:
    return {
        "items": [{"id": "i", "text": "a text", **({"images": list(images)} if images else {})}],
        "agents": [{"name": "a", "pool": pool}],
        "dimensions": [{"id": "d", "instructions": "?"}],
        **more,
    }


def test_a_pool_without_images_is_named(app, tmp_path):
    with pytest.raises(JobRefused, match=r"items: .*pool 'blind' of agent 'a' takes none.*images = true"):
        app.prepared(a_job(DATA, pool="blind"))
    assert app.prepared(a_job(pool="blind")).job.item_images == "none"
    assert app.prepared(a_job(DATA, pool="seeing")).job.item_images == "files"
    assert app.prepared(a_job(DATA), image_files=False).job.item_images == "no_files"
    for given in ("files", "no_files"):
        assert app.prepared(a_job(item_images=given)).job.item_images == "none", "nobody else says it"


@pytest.mark.parametrize(
    "image, told",
    [
        ("gone.png", "image 1: there is no file"),
        ("text.png", "text.png is no PNG, JPEG, GIF or WebP image"),
        ("huge.png", f"at most {MAX_IMAGE_BYTES} bytes, got {MAX_IMAGE_BYTES + 1}"),
        (".", "there is no file"),
        ("data:image/png;base64,eA==", "is no PNG"),
        (f"sha256:{'0' * 64}", "a digest, which Dicast alone sets"),
        ({"image": DATA, "kept": {"type": "image/png", "bytes": 1}}, "a digest, which Dicast alone sets"),
    ],
)
@pytest.mark.parametrize("form", ["items", "file"])
def test_what_cannot_be_used_is_refused_with_item_and_field(app, tmp_path, image, told, form):
    (tmp_path / "text.png").write_text("a secret of this machine")
    (tmp_path / "huge.png").write_bytes(PNG.ljust(MAX_IMAGE_BYTES + 1))
    job = a_job(image)
    if form == "file":
        (tmp_path / "items.jsonl").write_text(json.dumps(job["items"][0]) + "\n")
        job["items"] = {"path": str(tmp_path / "items.jsonl")}
    else:
        (tmp_path / "job.json").write_text(json.dumps(job))
        job = load_job(str(tmp_path / "job.json"))
    with pytest.raises((ImageError, InvalidJob), match=told) as caught:
        app.prepared(job)
    assert "images" in str(caught.value) and "'i'" in str(caught.value)


def test_images_are_bounded_together(app, tmp_path, monkeypatch):
    (tmp_path / "a.png").write_bytes(PNG.ljust(4_500_000))
    with pytest.raises(ImageError, match="together they hold at most 20000000 bytes, got 22500000"):
        app.prepared(a_job(*[str(tmp_path / "a.png")] * 5))
    monkeypatch.setattr(submitted, "MAX_INLINE_BYTES", 2 * len(PNG))
    assert app.prepared(a_job(DATA, DATA)).units == 1
    with pytest.raises(JobRefused, match=r"at most .* together, got"):
        app.prepared(a_job(DATA, DATA, DATA))


@pytest.mark.parametrize("path", ["a.png", "/etc/passwd", "../../etc/passwd", "no\\such"])
def test_items_over_http_name_no_files(app, tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.png").write_bytes(PNG)
    talk = [{"role": "assistant", "content": [{"type": "image_url", "image_url": {"url": path}}]}]
    (tmp_path / "items.jsonl").write_text(json.dumps({"text": "x", "images": [path]}) + "\n")
    jobs = [
        a_job(path), a_job(items=[{"id": "i", "messages": talk}]), a_job(items={"path": str(tmp_path / "items.jsonl")}),
    ]  # fmt: skip
    for job in jobs:
        with pytest.raises(ImageError, match="items that come over HTTP name no files") as caught:
            app.prepared(job, image_files=False)
        assert str(tmp_path) not in str(caught.value), "nor are they told where files are"


def test_workers_read_no_files_for_items_over_http(tmp_path):
    (tmp_path / "a.png").write_bytes(PNG)
    job = EvaluationJob.model_validate(a_job(str(tmp_path / "a.png"), item_images="no_files"))
    keep = image_storer(SimpleNamespace(spec=job), tmp_path)
    with pytest.raises(ImageError, match="over HTTP name no files"):
        keep(job.items[0])


async def test_images_are_kept_once_and_read_as_they_were(tmp_path):
    source = tmp_path / "given"
    source.mkdir()
    (source / "a.png").write_bytes(PNG)
    spec = EvaluationJob.model_validate(
        {**a_job(), "items": {"path": str(source / "items.jsonl")}, "item_images": "files"}
    )
    job = SimpleNamespace(spec=spec, id="j", incarnation="1")
    begin(tmp_path / "results", "j", "1")
    folder = own_folder(tmp_path / "results", "j", "1")
    item = Item.model_validate({"id": "1", "text": "x", "images": ["a.png", DATA, "https://h.invalid/x.png"]})
    kept = image_storer(job, folder)(item)
    (held,) = (folder / "images").iterdir()
    assert held.read_bytes() == PNG
    assert [image.image for image in kept.all_images] == [f"sha256:{held.name}"] * 2 + ["https://h.invalid/x.png"]
    assert [image.kept and image.kept.name for image in kept.all_images] == ["a.png", None, None]
    assert Item.model_validate_json(kept.model_dump_json(exclude_defaults=True)) == kept

    (source / "a.png").unlink()
    placed = [PlacedImage(at, image) for at, image in enumerate(kept.all_images)]
    reader = StoredImages(str(tmp_path / "results"))
    parts = await reader.parts(job, placed)
    assert [(part.at, part.type, base64.b64decode(part.data), part.address) for part in parts] == [
        (0, "image/png", PNG, ""), (1, "image/png", PNG, ""), (2, "", b"", "https://h.invalid/x.png"),
    ]  # fmt: skip
    held.write_bytes(PNG + b"changed")
    with pytest.raises(ImageError, match="its bytes have changed"):
        await StoredImages(str(tmp_path / "results")).parts(job, placed)
    held.unlink()
    with pytest.raises(ImageError, match="cannot be read: No such file"):
        await StoredImages(str(tmp_path / "results")).parts(job, placed)
    assert await reader.parts(job, placed[:1]) == parts[:1], "what was read a moment ago"


def test_a_job_file_names_images_beside_it(tmp_path):
    talk = [{"role": "user", "content": "x", "images": ["b.png", {"image": "c.png", "detail": "low"}]}]
    job = a_job("a.png", "/abs/d.png", DATA, "https://h/1")
    job["items"].append({"id": "k", "messages": talk, "judged": "conversation"})
    (tmp_path / "job.json").write_text(json.dumps(job))
    first, second = load_job(str(tmp_path / "job.json"))["items"]
    assert first["images"] == [str(tmp_path / "a.png"), "/abs/d.png", DATA, "https://h/1"]
    assert second["messages"][0]["images"] == [
        str(tmp_path / "b.png"), {"image": str(tmp_path / "c.png"), "detail": "low"},
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet"])
def test_images_are_read_from_every_format(tmp_path, name):
    given = [{"image": "https://h/1", "detail": "low"}, {"image": "a.png", "detail": None}]
    rows = [{"id": "1", "text": "x", "images": given}]
    path = tmp_path / name
    if name.endswith("parquet"):
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif name.endswith("csv"):
        cell = json.dumps([given[0], "a.png"]).replace('"', '""')
        path.write_text(f'id,text,images\n1,x,"{cell}"\n2,y,b.png\n3,z,\n')
    else:
        rows = [{**rows[0], "images": [given[0], "a.png"]}, {"id": "2", "text": "y", "images": "b.png"}]
        path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"id": "3", "text": "z"}]))
    items, _ = datasets.read_page(ItemSource(path=str(path)), None, 10)
    assert [[image.image for image in item.all_images] for item in items] == [
        ["https://h/1", "a.png"], ["b.png"], [],
    ][: len(items)]  # fmt: skip
    assert len(items) == (1 if name.endswith("parquet") else 3) and items[0].metadata == {}
    (plain, *_), _ = datasets.read_page(ItemSource(path=str(path), images_field=None), None, 10)
    assert plain.images is None and "images" in plain.metadata


def test_a_column_that_holds_something_else_is_named(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "x", "images": 3}\n')
    with pytest.raises(datasets.DatasetError, match="images: must be a list; say images_field: null"):
        datasets.read_page(ItemSource(path=str(tmp_path / "a.jsonl")), None, 10)
