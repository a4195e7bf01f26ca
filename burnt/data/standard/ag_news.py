"""AG News, from its CSV files."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from typing import Any, Literal

from burnt.data.files.folders import read_text
from burnt.data.standard.download import fetch, remote_file
from burnt.data.standard.mnist import check_split
from burnt.errors import DataError

_HOME = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/"
FILES = {split: remote_file(f"{split}.csv", _HOME) for split in ("train", "test")}


class AgNews:
    """AG News: 120,000 and 7,600 news articles in 4 classes, in memory.

    Args:
        folder: where ``train.csv`` and ``test.csv`` are, or a folder ``ag_news_csv`` with them.
        split: ``"train"`` or ``"test"``.
        download: download the file, 29 MB or 2 MB, into `folder`, if it is not there; its checksum is
            compared.
        mirror: the address of a folder that has the files, in place of their home.

    Items are ``{"texts": str, "labels": int}``; the text is the title, a space and the description.

    Attributes:
        classes: World, Sports, Business, Sci/Tech.
        texts: all texts.
        labels: all labels, from 0 on.

    Raises:
        DataError: the file is missing, cannot be downloaded, or a line cannot be read, with its number.

    >>> news = AgNews("data/ag_news", "test", download=True)  # doctest: +SKIP
    >>> news.classes[news[0]["labels"]]  # doctest: +SKIP
    'Business'
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        split: Literal["train", "test"] = "train",
        *,
        download: bool = False,
        mirror: str | None = None,
    ) -> None:
        check_split(split)
        file, places = FILES[split], (Path(folder), Path(folder) / "ag_news_csv")
        path = next((place / file.name for place in places if (place / file.name).is_file()), None)
        if path is None and not download:
            raise DataError(
                "a file of AG News is missing",
                where=str(folder),
                expected=file.name,
                hint="download=True downloads it",
            )
        self.classes = ["World", "Sports", "Business", "Sci/Tech"]
        self.texts: list[str] = []
        self.labels: list[int] = []
        path = path or fetch(file, Path(folder), mirror)
        rows = csv.reader(io.StringIO(read_text(path), newline=""))
        try:
            for line, row in enumerate(rows, start=1):
                if rows.line_num > line:  # an open quote takes the lines after it into its field
                    raise csv.Error("a quote is not closed")
                self._append(row, f"{path}:{line}")
        except csv.Error as error:
            where = f"{path}:{len(self.texts) + 1}"
            raise DataError("a row cannot be read", where=where, found=str(error)) from error

    def _append(self, row: list[str], where: str) -> None:
        if len(row) != 3 or row[0] not in ("1", "2", "3", "4"):
            raise DataError(
                "this is not a row of AG News",
                where=where,
                expected="class 1 to 4, title, description",
                found=", ".join(field[:30] for field in row) or "an empty line",
            )
        self.texts.append(f"{row[1]} {row[2]}")
        self.labels.append(int(row[0]) - 1)

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"texts": self.texts[index], "labels": self.labels[index]}
