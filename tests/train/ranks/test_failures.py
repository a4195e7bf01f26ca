"""A rank that fails ends all of them, in time and with its reason; the run goes on from its checkpoint."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch

from burnt.store import RunReader
from tests import forked
from tests.train.ranks.failures import KINDS, PLACES, Case

SIGNALS = {"INT": 2, "TERM": 15, "KILL": 9}
FAST = [Case("error", "validation", 1), Case("KILL", "saving", 0)]
OTHER_SIZES = [
    Case(kind, "step", size - 1, size, resumed, dropout=False)
    for size, kind in ((2, "KILL"), (3, "error"), (3, "TERM"))
    for resumed in (1, 2, 3)
    if resumed != size
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("failures")


def run(folder, cases):
    """Run the cases, and the trainings without a failure with which they are compared."""
    kinds = {(case.size, case.size, case.dropout, case.strategy) for case in cases}
    whole = [Case("", "", 0, *kind) for kind in sorted(kinds)]
    whole = [case for case in whole if not (folder / case.name).exists()]
    for case in cases:  # that another test of this module has run
        shutil.rmtree(folder / case.name, ignore_errors=True)
    document = json.dumps([dataclasses.asdict(case) for case in [*whole, *cases]])
    program = Path(__file__).with_name("failures.py")
    done = forked.run(program.read_text(), folder, document, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    codes = json.loads((folder / "codes.json").read_text())
    for case in cases:
        check(folder, case, *codes[case.name])


def check(folder, case, codes, resumed):
    output = [(folder / case.name / "failing" / f"rank{rank}.txt").read_text() for rank in range(case.size)]
    said = "\n".join(output)[-6000:]
    own = folder / case.name
    others = [rank for rank in range(case.size) if rank != case.victim]
    assert "Timeout" not in said, f"{case}: hangs\n{said}"
    assert codes == expected_codes(case), f"{case}: {codes}\n{said}"
    for rank in others:
        if codes[rank] != 1:
            continue
        # Without a launcher the store is rank 0's, and has gone when torch tells the others of rank 0's end.
        knows = (case.victim, case.strategy) != (0, "fsdp") or "has failed" in output[rank]
        if case.kind == "error" and knows:
            assert f"rank {case.victim} has failed, and this one cannot go on" in output[rank], case
            cause = "an item could not be loaded" if "read" in case.place else "ValueError: broken on purpose"
            assert f"found     {cause}" in output[rank].replace("burnt.errors.DataError: ", ""), case
            assert "ValueError: broken on purpose" in said
            assert "resume=True" in output[rank], case
            assert ("the traceback of rank" in output[rank]) == (rank == 0), case
        else:
            assert "burnt.errors.RankError: " in output[rank], f"{case}\n{said}"
            assert "from the last checkpoint: the same program, with resume=True" in output[rank], case
    if 0 in others and codes[0] == 1:
        check_record(own / "run", case)
    assert resumed == [0] * case.resumed, f"{case}: {resumed}"
    whole = folder / Case("", "", 0, case.size, case.size, case.dropout, case.strategy).name
    weights, expected = torch.load(own / "weights.pt"), torch.load(whole / "weights.pt")
    exact = case.size == case.resumed
    tolerance = 0 if exact else 1e-6
    torch.testing.assert_close(weights, expected, rtol=0, atol=tolerance, msg=f"{case}: {{}}".format)
    values = json.loads((whole / "values.json").read_text())
    found = json.loads((own / "values.json").read_text())
    # Rank 0 resumes with the sums of all ranks: an addition is done in another order.
    assert found == pytest.approx(values, abs=1e-12 if exact else 1e-6), case


def check_record(run, case):
    """The run says why it has ended: the first cause, where the rank that failed could tell."""
    with RunReader(run) as reader:
        (error,) = [event.data for event in reader.events() if event.kind == "error"]
    if case.kind == "error":
        cause = "an item could not be loaded" if "read" in case.place else "broken on purpose"
        assert f"rank {case.victim} has failed" in error["message"], case
        assert cause in error["message"], case
        assert "ValueError: broken on purpose" in error["traceback"], case
    else:
        assert error["error"] == "RankError", case


def expected_codes(case):
    """The exit codes of the ranks: of the one that fails, and of the others."""
    number = SIGNALS.get(case.kind, 0)
    is_handled = case.kind in ("INT", "TERM") and case.place != "first read"  # by the training, in all ranks
    if case.place == "end":  # the others have ended, or are about to, and a signal is too late to be handled
        failed = {"error": 1, "KILL": -number}.get(case.kind, 0)
        return [failed if rank == case.victim else 0 for rank in range(case.size)]
    if is_handled:
        return [128 + number] * case.size
    failed = -number if number else 1
    return [failed if rank == case.victim else 1 for rank in range(case.size)]


def test_a_rank_that_fails_ends_all_and_the_run_goes_on(folder):
    run(folder, FAST)


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_all_places(folder, kind, strategy):
    run(folder, [Case(kind, place, number % 2, strategy=strategy) for number, place in enumerate(PLACES)])


@pytest.mark.full
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_other_numbers_of_ranks_go_on(folder, strategy):
    run(folder, [dataclasses.replace(case, strategy=strategy) for case in OTHER_SIZES])
