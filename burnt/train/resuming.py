"""What a checkpoint says of a training besides its tensors, and what a resumed training makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from burnt.errors import CheckpointError
from burnt.kernels.dispatch.selection import choices
from burnt.store.schema import DATABASE
from burnt.train.checkpoints.checkpoint import Checkpoints, Loaded
from burnt.train.control.control import Control
from burnt.train.control.plateau import plateaus_of
from burnt.train.learner import Learner
from burnt.train.metrics import Metric
from burnt.train.settings import TrainingSettings


def checkpoint_document(settings: TrainingSettings, learner: Learner, control: Control) -> dict[str, Any]:
    """Return what a checkpoint holds of the settings, the callbacks and what commands have set."""
    return {
        "loader": settings.train.state(),
        "seed": settings.seed,
        "schedule": learner.schedule_text,
        "built": repr(learner.optimizer),
        "compile": learner.compile,
        "precision": settings.precision,
        "clip_norm": settings.clip_norm,
        "clip_value": settings.clip_value,
        "accumulate": settings.accumulate,
        "callbacks": settings.callbacks.state(),
        "stopping": None if settings.stopping is None else settings.stopping.state(),
        "plateaus": {group: plateau.state() for plateau, group in plateaus_of(learner).items()},
        "learning_rate": control.override,
        "rate_factor": control.override_factor,
        "kernels": choices(),
        "ranks": 1 if settings.ranks is None else settings.ranks.size,
    }


def restore_checkpoint(
    settings: TrainingSettings, learner: Learner, metrics: Sequence[Metric], checkpoints: Checkpoints | None
) -> Loaded:
    """Load the newest checkpoint of a resumed run, if there is one, and warn of settings that have changed.

    Model, optimizer, metrics, callbacks, early stopping and plateaus get their state. A CheckpointError says
    that the checkpoint is damaged, does not fit the model, or needs the loader of the run.
    """
    message = settings.reporter.message
    newest = checkpoints.newest() if checkpoints is not None and settings.resume else None
    if checkpoints is None or newest is None:
        if settings.resume:
            found = "has no checkpoint" if (settings.folder / DATABASE).exists() else "holds no run"
            message(f"{settings.folder} {found}: starting from the beginning.")
        return Loaded()
    ranks = settings.ranks
    loaded = checkpoints.load(newest, learner.model, metrics, 0 if ranks is None else ranks.rank)
    if ranks is not None and ranks.rank:
        for metric in metrics:  # rank 0 goes on with the sums of all
            metric.reset()
    assert loaded.optimizer is not None
    learner.optimizer.load_record(loaded.optimizer)
    document = loaded.document
    if settings.stopping is not None and document["stopping"] is not None:
        settings.stopping.load_state(document["stopping"])
    settings.callbacks.load_state(document.get("callbacks", {}))
    states = document.get("plateaus", {})  # checkpoints of burnt 0.1.0 lack them
    plateaus = plateaus_of(learner)
    if isinstance(states, list):  # as they were first stored
        states = dict(zip(plateaus.values(), states, strict=False))
    for plateau, group in plateaus.items():
        if group in states:
            plateau.load_state(states[group])
    if loaded.position.batch and document["loader"] != settings.train.state():
        raise CheckpointError(
            f"{newest.name} was saved in the middle of an epoch, with a different loader",
            where=str(newest),
            expected=f"train= with {document['loader']}",
            found=str(settings.train.state()),
            hint="resume with the same loader, or start a new run with the new one",
        )
    for name, key, now in (
        ("train=", "loader", settings.train.state()),
        ("the schedule", "schedule", learner.schedule_text),
        # Earlier checkpoints lack some of these.
        ("the optimizer", "built", repr(learner.optimizer)),
        ("compile=", "compile", learner.compile),
        ("precision=", "precision", settings.precision),
        ("accumulate=", "accumulate", settings.accumulate),
        ("clip_norm=", "clip_norm", settings.clip_norm),
        ("clip_value=", "clip_value", settings.clip_value),
    ):
        old = document.get(key, 1 if key == "accumulate" else now)
        if old != now:
            message(f"Warning: {name} changed since the checkpoint: was {old}, is now {now}.")
    for text in loaded.fields_kept:
        message(f"Warning: a field of the model changed since the checkpoint: {text}")
    for text in loaded.fields_set:
        message(f"A field of the model is as in the checkpoint: {text}")
    rate = document.get("learning_rate")
    if rate is not None and document["schedule"] != learner.schedule_text:
        message(
            f"Warning: the learning rate {rate:.4g} that a command had set no longer holds, because the "
            "schedule changed."
        )
        document["learning_rate"] = document["rate_factor"] = None
    return loaded
