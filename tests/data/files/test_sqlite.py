"""SQLite tables, views and queries: rows by rowid, in every process and thread."""

import os
import pickle
import sqlite3
import threading

import numpy as np
import pytest
import torch

from burnt.data import Loader, SqliteDataset
from burnt.errors import DataError


def execute(path, script):
    database = sqlite3.connect(path)
    database.executescript(script)
    database.close()


@pytest.fixture
def path(tmp_path):
    execute(
        tmp_path / "posts.db",
        """
        CREATE TABLE posts (id INTEGER PRIMARY KEY, title TEXT, stars, ok, image BLOB);
        INSERT INTO posts VALUES (9, 'c', 2.5, 1, x'00ff'), (2, 'a', 4, 0, x''), (5, 'b', NULL, 1, x'01');
        CREATE VIEW titles AS SELECT title FROM posts ORDER BY title DESC;
        CREATE TABLE keyed (word TEXT PRIMARY KEY, n INTEGER) WITHOUT ROWID;
        INSERT INTO keyed VALUES ('x', 1), ('y', 2);
        CREATE TABLE empty (a);
        CREATE TABLE "odd ""name" ("a b");
        INSERT INTO "odd ""name" VALUES (7);
        """,
    )
    return tmp_path / "posts.db"


def problem(*arguments, **options) -> str:
    with pytest.raises(DataError) as caught:
        list(SqliteDataset(*arguments, **options))
    return str(caught.value)


def test_a_table_is_in_the_order_of_its_rowids(path):
    posts = SqliteDataset(path, "posts", missing={"stars": 0}, types={"ok": bool}, label="title")
    assert len(posts) == 3
    assert [int(row["id"]) for row in posts] == [2, 5, 9]
    row = posts[-1]
    assert [type(cell) for cell in row.values()] == [np.int64, np.int64, np.float32, np.bool_, bytes]
    assert (row["stars"], row["ok"], row["image"], posts.classes) == (2.5, True, b"\0\xff", ["a", "b", "c"])
    assert posts.place(2).endswith("posts.db, table 'posts', rowid 9")
    (batch,) = Loader(SqliteDataset(path, "posts", columns={"x": ["stars", "ok"]}, missing="nan"), 3)
    assert torch.equal(batch.x.nan_to_num(-1), torch.tensor([[4, 0], [-1, 1], [2.5, 1]]))


def test_views_queries_and_tables_without_rowids(path):
    assert [row["title"] for row in SqliteDataset(path, "titles")] == ["c", "b", "a"]
    assert [row["word"] for row in SqliteDataset(path, "keyed")] == ["x", "y"]
    assert SqliteDataset(path, 'odd "name')[0] == {"a b": 7}
    query = "SELECT id * 2 AS twice FROM posts WHERE id > :least ORDER BY id DESC"
    rows = SqliteDataset(path, query=query, parameters={"least": 3})
    assert [int(row["twice"]) for row in rows] == [18, 10]
    assert rows.place(1).endswith("the query, row 2")
    assert pickle.loads(pickle.dumps(rows))[0] == {"twice": 18}


def test_each_process_and_thread_has_its_own_connection(path):
    posts = SqliteDataset(path, query="SELECT id FROM posts ORDER BY id")
    titles = SqliteDataset(path, "posts", columns=["title"])
    assert (posts[0], titles[0]) == ({"id": 2}, {"title": "a"})
    seen = []

    def read():
        seen.append((posts[2], titles[2]))

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert seen == [({"id": 9}, {"title": "c"})]
    assert pickle.loads(pickle.dumps(titles))[1] == {"title": "b"}
    if hasattr(os, "fork"):
        child = os.fork()
        if child == 0:
            read()
            os._exit(seen[1] != seen[0])
        assert os.waitpid(child, 0)[1] == 0
    assert posts[1] == {"id": 5}


def test_it_reads_only(path):
    before = path.read_bytes()
    assert 'near "DELETE"' in problem(path, query="DELETE FROM posts")
    SqliteDataset(path, query="SELECT 1")
    assert path.read_bytes() == before


def test_faults(path, tmp_path):
    message = problem(path, "posts")
    assert "table 'posts', rowid 5, column 'stars'\n  expected  a number\n  found     nothing" in message
    message = problem(path, "post")
    assert "no such table" in message
    assert message.endswith("found     'post'\n  hint      did you mean 'posts'?")
    assert "there are no rows\n  in        " in problem(path, "empty")
    assert "reads either a table or a query" in problem(path)
    assert "reads either a table or a query" in problem(path, "posts", query="SELECT 1")
    assert 'the query\n  found     near "SELEC"' in problem(path, query="SELEC")
    assert "there is no such file" in problem(tmp_path / "post.db", "posts")
    (tmp_path / "text.db").write_text("no database, but long enough to be one " * 20)
    message = problem(tmp_path / "text.db", "posts")
    assert "text.db, table 'posts'\n  found     file is not a database" in message
    latin = "CREATE TABLE names (name); INSERT INTO names VALUES ('a'), (CAST(X'ff41' AS TEXT));"
    execute(tmp_path / "latin.db", latin)
    message = problem(tmp_path / "latin.db", "names")
    assert "latin.db, table 'names', rowid 2\n  found     Could not decode to UTF-8 column 'name'" in message
    gone = SqliteDataset(path, "posts", columns=["id"])
    execute(path, "DELETE FROM posts WHERE id = 5")
    with pytest.raises(DataError, match="a row is gone"):
        gone[1]


@pytest.mark.parametrize("timeout", [0, 1e-9])
def test_a_query_without_an_end_is_interrupted(path, timeout):
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
    message = problem(path, query=endless, timeout=timeout)
    assert message.startswith(f"a query takes too long\n  in        {path}\n")
    assert f"timeout={timeout} seconds" in message
    assert endless in message
    execute(path, f"CREATE VIEW endless AS {endless}; CREATE VIEW counted AS SELECT count(*) FROM endless;")
    for view in ("endless", "counted"):
        assert "a query takes too long" in problem(path, view, timeout=timeout)
    for limit in (60, None):
        titles = SqliteDataset(path, query="SELECT title FROM posts ORDER BY title", timeout=limit)
        assert [item["title"] for item in titles] == ["a", "b", "c"]
    assert "no such table: absent" in problem(path, query="SELECT * FROM absent", timeout=timeout)
