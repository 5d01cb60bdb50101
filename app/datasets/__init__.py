"""Items that lie in a file: JSONL, CSV, TSV or Parquet, read a page at a time.

    items, cursor = read_page(source, None, 500)    # from the start
    items, cursor = read_page(source, cursor, 500)  # and on, in this process or another; None: nothing is left

A cursor is a small JSON value and lets a page be read in time and memory of that page, not of the file. For Parquet,
whose row groups cannot be entered in the middle, this holds while one process reads on; a process that takes over
decodes the row group up to the cursor once.

Rules. Texts are UTF-8, with or without a byte order mark; empty lines are skipped. An item's text must be text and
not blank; an id may be a whole number. Prompt and reference may be missing, null or empty. All other columns become
the item's metadata. If the file has no column `id` (and the job asks for none by another name), items are named by
their row: 1, 2, 3, ... Whether it has is decided by the header, the schema, or the first object of a JSONL file.

Whatever is wrong raises `DatasetError`, which names the file, the line (in Parquet the row), the field and the value.
"""

from dicast.app.datasets.images import check_images, read_image
from dicast.app.datasets.pages import count_items, fingerprint, read_page
from dicast.app.datasets.ratings import PairsOf, file_of, list_of, ratings_of_file, read_ratings
from dicast.app.datasets.surveying import KnownItems, Survey, survey, survey_ratings
from dicast.app.datasets.tables import DatasetError, located

__all__ = [
    "DatasetError", "KnownItems", "PairsOf", "Survey", "check_images", "count_items", "file_of", "fingerprint",
    "list_of", "located", "ratings_of_file", "read_image", "read_page", "read_ratings", "survey", "survey_ratings",
]  # fmt: skip
