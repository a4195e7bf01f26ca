"""Ranges and choices, samplers, pruning, and what is told of the trials."""

import itertools
import math
import statistics

import pytest

from burnt import Config
from burnt.errors import ConfigError
from burnt.store.sweeps import Parameter, Sweep, Trial, importance, ranked
from burnt.sweep.pruning import should_prune
from burnt.sweep.sampling import grid_size, propose
from burnt.sweep.space import check_space, parse_space

LR = Parameter(key="lr", kind="float", low=1e-4, high=1e-1, log=True)
LAYERS = Parameter(key="layers", kind="int", low=1, high=4)
HIDDEN = Parameter(key="hidden", kind="choice", choices=(8, 32))
SPACE = (LR, LAYERS, HIDDEN)


class Model(Config):
    hidden: int = 8
    kind: str = "relu"
    is_deep: bool = False


class Settings(Config):
    model: Model = Model()
    lr: float = 0.1
    layers: int = 1
    both: int | float = 1


def checked(*words):
    space, fixed = parse_space(words)
    return check_space(space, fixed, Settings.from_assignments)


def test_kinds_follow_the_fields():
    space = checked("lr=1..4", "layers=1..4", "model.hidden=8|16", "model.kind=relu|007", "both=1..3")
    assert [parameter.kind for parameter in space] == ["float", "int", "choice", "choice", "int"]
    assert space[3].choices == ("relu", "007")
    assert checked("lr=1e-4..1e-1:log") == (LR,)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model.hiden=8|16"], "did you mean 'hidden'?"),
        (["layers=0.5..4"], "layers"),
        (["model.is_deep=0..1"], "model.is_deep has no range"),
        (["model.kind=1..2"], "choices are written model.kind=A|B"),
        (["lr=1..1e-3"], "the range of lr is invalid"),
        (["lr=0..1:log"], "low above 0"),
        (["lr=1..2:lin"], "low..high:log"),
        (["lr=1e-4...1e-1"], "expected  low..high with two dots"),  # not 0.0001 to 0.01
        (["layers=1|2", "layers=3|4"], "layers is given twice"),
        (["layers=1..2", "layers=3"], "layers is given twice"),
        (["lr=1..1e999"], "the range of lr is invalid"),
        (["lr=-1e999..1"], "the range of lr is invalid"),
        (["layers=1|1"], "expected  different values"),
        (["layers=1|"], "the choices of layers are invalid"),
        (["layers=2|many"], "many"),
        (["layers=2"], "no setting is searched"),
    ],
)
def test_what_does_not_fit_is_refused(words, message):
    with pytest.raises(ConfigError) as caught:
        checked(*words)
    assert message in str(caught.value)


def test_what_is_no_range_stays_as_it_is():
    _, fixed = parse_space(["a=1..2", "path=../x..y", 'b="x|y"', "c=[1,2]", "d=1.5"])
    assert fixed == ("path=../x..y", 'b="x|y"', "c=[1,2]", "d=1.5")


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_proposals_are_inside_and_repeatable(sampler):
    if sampler == "tpe":
        pytest.importorskip("optuna")
    sweep = Sweep(target="t:f", space=SPACE, sampler=sampler, seed=3)
    trials = []
    for number in range(1, 15):
        params = propose(sweep, trials, number)
        assert params == propose(sweep, trials, number)
        assert 1e-4 <= params["lr"] <= 1e-1
        assert params["layers"] in range(1, 5)
        assert params["hidden"] in (8, 32)
        state = ["complete", "pruned", "failed", "running"][number % 4]
        value = params["lr"] if state in ("complete", "pruned") else None
        trials.append(Trial(number=number, params=params, state=state, value=value, step=1))
    assert len({trial.params["lr"] for trial in trials}) == len(trials)
    assert propose(sweep.replace(seed=4), [], 1) != propose(sweep, [], 1)


def test_tpe_is_optunas_and_finds_the_better_half():
    optuna = pytest.importorskip("optuna")
    sweep = Sweep(target="t:f", space=(LR,), sampler="tpe", direction="higher")
    trials = []
    for number in range(1, 31):
        params = propose(sweep, trials, number)
        value = -abs(math.log10(params["lr"]) + 2)
        trials.append(Trial(number=number, params=params, state="complete", value=value, step=1))
    late = statistics.mean(trial.value for trial in trials[15:])
    assert late > statistics.mean(trial.value for trial in trials[:10]) + 0.2
    # With nothing known, it is Optuna's own first proposal for the seed.
    import random

    seed = random.Random("0:1").getrandbits(32)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, constant_liar=True))
    own = study.ask({"lr": optuna.distributions.FloatDistribution(1e-4, 1e-1, log=True)}).params["lr"]
    assert trials[0].params["lr"] == pytest.approx(own, rel=1e-3)


def test_a_range_is_covered_evenly():
    drawn = [propose(Sweep(target="t:f", space=SPACE, sampler="random"), [], n) for n in range(1, 801)]
    assert statistics.mean(math.log10(one["lr"]) for one in drawn) == pytest.approx(-2.5, abs=0.1)
    for layers in range(1, 5):
        assert sum(one["layers"] == layers for one in drawn) == pytest.approx(200, abs=50)


def test_a_narrow_range_has_many_values():
    narrow = Parameter(key="x", kind="float", low=10000.0, high=10010.0)
    drawn = [narrow.at(i / 100) for i in range(100)]
    assert len(set(drawn)) == 100
    assert max(abs(x - 10000 - i / 10) for i, x in enumerate(drawn)) < 1e-2


def test_a_grid_is_the_product():
    sweep = Sweep(target="t:f", space=(LAYERS, HIDDEN), sampler="grid")
    assert grid_size(sweep.space) == 8
    found = [tuple(propose(sweep, [], number).values()) for number in range(1, 9)]
    assert found == list(itertools.product(range(1, 5), (8, 32)))
    with pytest.raises(ConfigError, match=r"a grid has no values for the range of lr"):
        grid_size(SPACE)


def test_the_median_rule_is_optunas():
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruner = optuna.pruners.MedianPruner(n_startup_trials=5)
    study = optuna.create_study(pruner=pruner)
    complete = [[0.9 - 0.1 * i, 0.5 + 0.07 * ((i * 3) % 5), 0.2] for i in range(6)]
    for curve in complete:
        frozen = optuna.trial.create_trial(value=curve[-1], intermediate_values=dict(enumerate(curve)))
        study.add_trial(frozen)
    for first, second in itertools.product((0.3, 0.6, 0.7, 0.95), repeat=2):
        trial = study.ask()
        for step, value in enumerate((first, second)):
            trial.report(value, step)
            mine = should_prune("median", [first, second][: step + 1], complete, complete)
            assert mine == trial.should_prune(), (first, second, step)
    assert not should_prune("median", [9.0], complete[:4], complete)


def test_halving_keeps_the_best_third():
    others = [[0.1 * i, 0.1 * i, 0.1 * i] for i in range(1, 9)]
    kept = [
        value for value in (0.05, 0.15, 0.25, 0.35, 0.45) if not should_prune("halving", [value], [], others)
    ]
    assert kept == [0.05, 0.15, 0.25]  # 3 of 9
    assert not should_prune("halving", [9.0], [], [])
    assert not should_prune("halving", [0.05, 9.0], [], others)
    assert should_prune("halving", [9.0, 9.0, 0.85], [], others)
    assert not should_prune("none", [9.0], others, others)


def trials_of(pairs):
    return [
        Trial(number=n, params=params, state="complete", value=value)
        for n, (params, value) in enumerate(pairs, 1)
    ]


def test_importance_is_the_epsilon_squared_of_scipys_anova():
    stats = pytest.importorskip("scipy.stats")
    pairs = [
        (
            {"lr": 10 ** (-4 + 3 * i / 19), "layers": 1 + i * 7 % 4, "hidden": (8, 32)[i * 5 % 3 == 0]},
            (i - 9) ** 2 + i,
        )
        for i in range(20)
    ]
    found = importance(SPACE, trials_of(pairs))
    ranks = stats.rankdata([value for _, value in pairs])
    groups = {
        "lr": [i // 5 for i in range(20)],
        "layers": [params["layers"] for params, _ in pairs],
        "hidden": [params["hidden"] for params, _ in pairs],
    }
    for key, labels in groups.items():
        parts = [[r for r, one in zip(ranks, labels, strict=True) if one == label] for label in set(labels)]
        f, between, within = stats.f_oneway(*parts).statistic, len(parts) - 1, 20 - len(parts)
        expected = max(0.0, (f - 1) * between / (f * between + within))
        assert found[key] == pytest.approx(expected, abs=1e-12)
    assert list(found) == sorted(found, key=found.get, reverse=True)
    assert found["lr"] > 0.5 > found["hidden"]
    assert importance(SPACE, trials_of(pairs[:7])) is None


def test_ranked_puts_pruned_ones_after_complete_ones():
    states = ["failed", "pruned", "complete", "complete", "complete"]
    trials = [
        Trial(number=n, params={}, state=state, value=None if state == "failed" else value)
        for n, (state, value) in enumerate(zip(states, (0.0, 0.1, 0.3, 0.2, 0.2), strict=True), 1)
    ]
    assert [trial.number for trial in ranked(trials, "lower")] == [4, 5, 3, 2, 1]
    assert [trial.number for trial in ranked(trials, "higher")] == [3, 4, 5, 2, 1]
