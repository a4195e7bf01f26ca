"""A disk that is full, or a process that is killed, at every operation of a save."""

import errno
import itertools
import shutil

import pytest

from tests import forked
from tests.faults import operations
from tests.record.saving_cases import CASES

KILLED = """
import itertools, os, shutil, sys
from pathlib import Path
from tests.faults import KILLED, operations
from tests.record.saving_cases import CASES

before, here = Path(sys.argv[1], "before"), Path(sys.argv[1], "here")
for name in sys.argv[2:]:
    case = CASES[name]
    shutil.rmtree(before, ignore_errors=True)
    before.mkdir()
    if case.has_old:
        case.save(before, 0)
    seen = []
    for at in itertools.count(1):
        shutil.rmtree(here, ignore_errors=True)
        shutil.copytree(before, here)
        child = os.fork()
        if child == 0:
            with operations(at, "killed"):
                case.save(here, 1)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, KILLED), code
        found = case.load(here)
        assert found in (0 if case.has_old else None, 1), (name, at, found)
        seen.append(found)
        case.save(here, 1)
        assert case.load(here) == 1, (name, at)
        left = [path for path in here.rglob("*") if path.is_file() and path.name[0] != "."]
        if code == 0:
            assert len(left) == clean, (name, at, left)
            break
        if at == 1:
            clean = len(left)
        assert len(left) == clean, (name, at, left)
    assert seen == sorted(seen, key=lambda found: found or 0), seen
    print(name, at - 1)
"""


@pytest.fixture
def folders(tmp_path):
    """The content before, and a function that gives a fresh copy of it to save over."""

    def copies(case):
        before = tmp_path / "before"
        before.mkdir()
        if case.has_old:
            case.save(before, 0)
        for number in itertools.count(1):
            here = tmp_path / str(number)
            shutil.copytree(before, here)
            yield here
            shutil.rmtree(here)

    return copies


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.sample(5)
@pytest.mark.parametrize("how", ["full", "refused"])
@pytest.mark.parametrize("name", CASES)
def test_an_error_leaves_the_old_or_the_new_content(folders, name, how):
    case, before = CASES[name], None
    for at, here in enumerate(folders(case), 1):
        before = contents(here) if before is None else before
        with operations(at, how) as done:
            try:
                case.save(here, 1)
                error = None
            except OSError as raised:
                error = raised
        found = None if not case.has_old and contents(here) == {} else case.load(here)
        if not done.failed:
            assert error is None
            break
        if found == 1:  # what failed came after the new content was complete
            assert not [path for path in contents(here) if "/." in f"/{path}" and "tmp-" not in path]
            continue
        assert found == (0 if case.has_old else None)
        assert contents(here) == before
        assert error.errno == (errno.ENOSPC if how == "full" else errno.EIO)
        assert str(here) in str(error.filename)
        assert "/." not in str(error.filename).replace("/.tmp-", "")
    assert found == 1
    assert at > 6


@pytest.mark.sample(keep=("module", "new shards"))
@pytest.mark.parametrize("name", CASES)
def test_short_writes_are_continued(folders, name):
    case = CASES[name]
    for at, here in enumerate(folders(case), 1):
        with operations(at, "short") as done:
            case.save(here, 1)
        assert case.load(here) == 1
        if not done.failed:
            break


@pytest.mark.parametrize(
    "names", [["as many shards"], pytest.param(list(CASES), marks=pytest.mark.full)], ids=["shards", "all"]
)
def test_a_killed_process_leaves_the_old_or_the_new_content(tmp_path, names):
    done = forked.run(KILLED, tmp_path, *names)
    assert done.returncode == 0, done.stderr
    counts = dict(line.rsplit(maxsplit=1) for line in done.stdout.splitlines())
    assert list(counts) == names
    assert all(int(count) > 6 for count in counts.values())


@pytest.mark.parametrize("name", CASES)
def test_a_file_is_on_the_disk_before_its_name_is(folders, name):
    here = next(folders(CASES[name]))
    with operations() as done:
        CASES[name].save(here, 1)
    for number, (kind, path) in enumerate(done.log):
        if kind == "replace":
            earlier = [k for k, p in done.log[:number] if p == path]
            assert earlier[-1] == "fsync"
            assert "fsync" in [k for k, p in done.log[number:] if path.startswith(p + "/")]
    assert "replace" in [kind for kind, _ in done.log]
