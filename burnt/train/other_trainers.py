"""Names of Lightning's and Hugging Face's trainers, and what burnt has instead: hints of error messages.

docs/from-lightning.md has the same for readers.
"""

from __future__ import annotations

_LEARNER_RATE = "the learning rate belongs to the Learner: run(Learner(model, optimizer, 1e-3))"
_SCHEDULE = "the schedule belongs to the Learner, such as optim.Warmup(500, optim.Cosine(1e-3, steps=10_000))"
_OPTIMIZER = "the optimizer belongs to the Learner: run(Learner(model, optim.AdamW(weight_decay=0.01), ...))"
_BATCH_SIZE = "the batch size belongs to the loader: train=Loader(dataset, batch_size=32)"
_ACCUMULATE = "accumulate=4"
_WORKERS = "worker processes belong to the loader: train=Loader(..., workers=2)"
_VALIDATE = 'validate_every="500 steps" or "1 epoch"'
_SAVE = 'checkpoint_every="500 steps" or "1 epoch"; checkpoints= selects those that stay'
_PROGRESS = 'monitor="off", or "plain" for lines'
_BEST = 'stopping=EarlyStopping("loss", "3 epochs", restore_best=True); burnt.load(folder) has the best too'

TRAINER_OPTIONS = {
    "accumulate_grad_batches": _ACCUMULATE,
    "barebones": 'monitor="off", checkpoints=None and check=False leave the loop and the run store',
    "batch_size": _BATCH_SIZE,
    "benchmark": "torch.backends.cudnn.benchmark = True before the run",
    "bf16": 'precision="bfloat16"',
    "check_val_every_n_epoch": 'validate_every="2 epochs"',
    "compute_metrics": "metrics=[Accuracy()], or a Metric of your own",
    "criterion": "the loss is computed in the step of the Learner",
    "data_collator": "batcher= of the loader",
    "dataloader_num_workers": _WORKERS,
    "detect_anomaly": 'on_nan="skip" or "stop"; with "raise", the default, the error names the step',
    "deterministic": "seed=, and torch.use_deterministic_algorithms(True) before the run",
    "disable_tqdm": _PROGRESS,
    "enable_checkpointing": "checkpoints=None turns them off",
    "enable_model_summary": "burnt.summary(model, batch)",
    "enable_progress_bar": _PROGRESS,
    "eval_on_start": "validate_first=True",
    "eval_steps": _VALIDATE,
    "eval_strategy": _VALIDATE,
    "fast_dev_run": "a method: training.quick_run(learner)",
    "fp16": 'precision="float16"',
    "full_determinism": "seed=, and torch.use_deterministic_algorithms(True) before the run",
    "gradient_accumulation_steps": _ACCUMULATE,
    "gradient_checkpointing": 'checkpoint_activations="decoder.layers.*", a pattern on paths of modules',
    "gradient_clip_algorithm": "clip_norm= limits the norm, clip_value= each element",
    "gradient_clip_val": "clip_norm=1.0 limits the norm, clip_value= each element",
    "group_by_length": "Loader(..., buckets=lengths)",
    "inference_mode": "validations run in torch.no_grad, always",
    "learning_rate": _LEARNER_RATE,
    "load_best_model_at_end": _BEST,
    "logger": "every run is recorded in its folder: burnt monitor; callbacks=[TensorBoard()] mirrors it",
    "logging_steps": "log_every=20",
    "loss": "the loss is computed in the step of the Learner",
    "lr": _LEARNER_RATE,
    "lr_scheduler_type": _SCHEDULE,
    "max_grad_norm": "clip_norm=1.0",
    "metric_for_best_model": 'checkpoints=[KeepLast(2), KeepBest("accuracy")]',
    "model": "the model belongs to the Learner: run(Learner(model, ...))",
    "num_sanity_val_steps": "one batch of each validation set is tried before step 1, unless check=False",
    "num_workers": _WORKERS,
    "optimizer": "the optimizer belongs to the Learner: run(Learner(model, optimizer, ...))",
    "per_device_eval_batch_size": _BATCH_SIZE,
    "per_device_train_batch_size": _BATCH_SIZE,
    "profiler": "callbacks=[Profiler()]",
    "reload_dataloaders_every_n_epochs": "a loader is asked for each epoch: give it epoch(epoch, start) and "
    "num_batches(), as burnt.data.EpochLoader",
    "report_to": "callbacks=[TensorBoard()], WandB(project) or MLflow(experiment)",
    "resume_from_checkpoint": "resume=True goes on from the newest checkpoint in the folder",
    "save_steps": _SAVE,
    "save_strategy": _SAVE,
    "save_total_limit": "checkpoints=[KeepLast(2)]",
    "tf32": 'precision="tf32"',
    "torch_compile": "Learner(model, ..., compile=True)",
    "use_cpu": 'device="cpu"',
    "val_check_interval": _VALIDATE,
    "warmup_ratio": _SCHEDULE,
    "warmup_steps": _SCHEDULE,
    "weight_decay": _OPTIMIZER,
}
"""Arguments of Lightning's Trainer and Hugging Face's TrainingArguments -> what SupervisedTraining has."""

_NO_EARLIER = "on_step of the step before; batches are changed by transform= of the loader"
_STATE = "the methods state() and load_state(state)"

CALLBACK_METHODS = {
    "on_after_backward": "on_gradients",
    "on_before_optimizer_step": "on_gradients",
    "on_before_zero_grad": "on_step",
    "on_epoch_begin": "on_epoch of the epoch before",
    "on_epoch_end": "on_epoch",
    "on_evaluate": "on_validation",
    "on_exception": "on_error",
    "on_fit_end": "on_end",
    "on_fit_start": "on_start",
    "on_load_checkpoint": _STATE,
    "on_pre_optimizer_step": "on_gradients",
    "on_save": "on_checkpoint",
    "on_save_checkpoint": _STATE,
    "on_step_begin": _NO_EARLIER,
    "on_step_end": "on_step",
    "on_train_batch_end": "on_step",
    "on_train_batch_start": _NO_EARLIER,
    "on_train_begin": "on_start",
    "on_train_end": "on_end",
    "on_train_epoch_end": "on_epoch",
    "on_train_epoch_start": "on_epoch of the epoch before",
    "on_train_start": "on_start",
    "on_validation_batch_end": "burnt.log in the validation step",
    "on_validation_end": "on_validation",
    "on_validation_epoch_end": "on_validation",
}
"""Methods of Lightning's and Hugging Face's callbacks -> names in `burnt.train.events.HOOKS`."""

LOG_OPTIONS = frozenset({"on_step", "on_epoch", "prog_bar", "logger", "reduce_fx", "sync_dist"})
"""Arguments of Lightning's ``self.log``, which are not values to log."""
