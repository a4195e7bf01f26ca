"""Which parameters the next trial has: a grid, random ones, or what Optuna proposes.

A proposal follows from the seed, the trial's number and the trials before it, so a sweep that goes on after
a crash neither repeats the proposals it has made nor needs a state of its sampler.
"""

from __future__ import annotations

import itertools
import math
import random
import warnings
from collections.abc import Sequence
from typing import Any

from burnt.errors import ConfigError, UnsupportedError
from burnt.store.sweeps import Parameter, Sweep, Trial, Value


def grid_size(space: Sequence[Parameter]) -> int:
    """Return the number of combinations of choices and whole numbers; a ConfigError for a range of floats."""
    return math.prod(len(_grid_values(parameter)) for parameter in space)


def _grid_values(parameter: Parameter) -> Sequence[Value]:
    if parameter.kind == "float":
        raise ConfigError(
            f"a grid has no values for the range of {parameter.key}",
            expected="choices, or a range of whole numbers",
            hint=f"{parameter.key}={parameter.low:g}|{parameter.high:g}, or --sampler random",
        )
    return parameter.choices or range(int(parameter.low), int(parameter.high) + 1)


def propose(sweep: Sweep, trials: Sequence[Trial], number: int) -> dict[str, Value]:
    """Return the parameters of a trial.

    Args:
        sweep: the space, the sampler and its seed.
        trials: all trials so far; those that run have no value yet.
        number: the trial's number, from 1 on.
    """
    if sweep.sampler == "grid":
        values = itertools.product(*map(_grid_values, sweep.space))
        chosen = next(itertools.islice(values, number - 1, None))
        return dict(zip([parameter.key for parameter in sweep.space], chosen, strict=True))
    rng = random.Random(f"{sweep.seed}:{number}")
    if sweep.sampler == "random":
        return {parameter.key: parameter.at(rng.random()) for parameter in sweep.space}
    return _ask_optuna(sweep, trials, rng.getrandbits(32))


def check_optuna() -> None:
    """Raise an UnsupportedError if Optuna is not installed."""
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        raise UnsupportedError(
            "the sampler tpe needs Optuna, which is not installed",
            found=str(error),
            hint='pip install "burnt[sweep]", or --sampler random',
        ) from error


def _ask_optuna(sweep: Sweep, trials: Sequence[Trial], seed: int) -> dict[str, Value]:
    import optuna
    from optuna.trial import TrialState, create_trial

    space = {parameter.key: _distribution(parameter) for parameter in sweep.space}
    states = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "running": TrialState.RUNNING}
    with warnings.catch_warnings():  # of versions in which constant_liar is experimental
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        # Running trials count as bad ones, so that several jobs do not try the same.
        sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study(
            sampler=sampler, direction="maximize" if sweep.direction == "higher" else "minimize"
        )
        for trial in trials:
            if trial.state == "failed" or (trial.value is None and trial.state != "running"):
                continue
            is_pruned = trial.state == "pruned" and trial.value is not None
            points: Any = {trial.step or 0: trial.value} if is_pruned else None
            study.add_trial(
                create_trial(
                    state=states[trial.state],
                    params=trial.params,
                    distributions=space,
                    value=trial.value if trial.state == "complete" else None,
                    intermediate_values=points,
                )
            )
        asked = study.ask(space).params
    finally:
        optuna.logging.set_verbosity(verbosity)
    return {p.key: p.fit(asked[p.key]) if p.kind == "float" else asked[p.key] for p in sweep.space}


def _distribution(parameter: Parameter) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if parameter.kind == "choice":
        return CategoricalDistribution(parameter.choices)
    kind: Any = IntDistribution if parameter.kind == "int" else FloatDistribution
    return kind(parameter.low, parameter.high, log=parameter.log)
