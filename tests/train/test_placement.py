"""A model in parts: where tensors go, which inputs move, errors; trainings compared with one device."""

from __future__ import annotations

import copy
import textwrap

import pytest
import torch
from torch import nn

import burnt
from burnt import optim
from burnt.data import Batch
from burnt.errors import BurntError, ConfigError, DeviceError, OptimError, UnsupportedError
from burnt.train import Learner, SupervisedTraining
from burnt.train.placement import Placement, device_of, device_types, place
from tests import forked, second_device
from tests.train import parts
from tests.train.parts import Net

# Without a second device, meta tensors stand for it: their device is real, though they have no values.


class Pair(nn.Module):
    """A parameter of its own on one device, and a submodule on another that gets containers."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))
        self.inner = Containers()

    def forward(self, x: torch.Tensor, *, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.inner({"x": x * self.scale, "n": 3}, rest=[Batch(mask=mask), (mask, None)])
        return {"y": y, "x": x}


class Containers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, first: dict[str, torch.Tensor], rest: list[object]) -> torch.Tensor:
        return self.linear(first["x"]) * rest[0].mask * rest[1][0]


def hooked(model: nn.Module) -> list[str]:
    return [path for path, module in model.named_modules() if module._forward_pre_hooks]


def test_tensors_are_where_the_first_pattern_says():
    model = Net()
    assert place(model, {"blocks.1|embedding": "cpu", "*": "meta"}) is model
    on_cpu = {path for path, kind in parts.devices(model).items() if kind == "cpu"}
    assert on_cpu == {"embedding.weight", "blocks.1.0.weight", "blocks.1.0.bias"}
    assert model.norm.running_mean.device.type == "meta"
    # A ModuleList is never called, so each block is a part.
    assert hooked(model) == ["embedding", "blocks.0", "blocks.1", "norm", "head"]
    assert (device_of(model).type, device_types(model)) == ("meta", ("meta", "cpu"))


def test_inputs_move_to_each_part_in_any_container_and_outputs_to_the_device_of_the_last_pattern():
    model = place(Pair(), {"scale": "cpu", "*": "meta"})
    x = torch.ones(3, 2, requires_grad=True)
    outputs = model(x, mask=torch.ones(2))
    assert {name: value.device.type for name, value in outputs.items()} == {"y": "meta", "x": "meta"}
    assert outputs["y"].grad_fn is not None


def test_hooks_follow_the_model_to_one_device_and_into_copies(tmp_path):
    reference = Net()
    tokens = torch.randint(11, (4, 5))
    expected = reference.eval()(tokens)
    model = place(copy.deepcopy(reference), {"head": "meta", "*": "cpu"})
    model.load_state_dict(reference.state_dict(), assign=True)  # back on the CPU, with values
    for one in (model, copy.deepcopy(model), place(model, "cpu")):
        assert torch.equal(one(tokens), expected)
        assert device_of(one).type == "cpu"
    assert hooked(model) == []  # as it was placed on one device
    assert not model._forward_hooks


def test_another_placement_replaces_the_hooks():
    model = place(Net(), {"embedding": "cpu", "*": "meta"})
    place(model, {"embedding": "cpu", "blocks.1|*": "meta"})
    assert all(len(m._forward_pre_hooks) <= 1 and len(m._forward_hooks) <= 1 for m in model.modules())
    assert repr(Placement.of(model)) == "embedding: cpu, *: meta"
    assert repr(Placement({"head": "cpu", "*": "meta"})) == "head: cpu, *: meta"


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight


@pytest.mark.parametrize(
    ("model", "device", "error", "message"),
    [
        (Net, {"hed": "cpu", "*": "meta"}, ConfigError, r"'hed' of device= matches no .*did you mean 'head'"),
        (Net, {"*": "cpu", "head": "meta"}, ConfigError, r"places nothing.*head\.weight.*before '\*'"),
        (Net, {"head": "cpu"}, ConfigError, r"places only 2 of 12 .*embedding\.weight.*\"\*\": \"cpu\""),
        (Net, {"head.bias": "cpu", "*": "meta"}, ConfigError, r"in one module.*head\.bias.*meta, the device"),
        (Tied, {"head": "cpu", "*": "meta"}, ConfigError, r"shared by two parts.*one pattern for both: .*\|"),
        (Net, {"head": "nowhere", "*": "cpu"}, DeviceError, r"cannot use.*'nowhere'.*device\['head'\]"),
        (Net, {"head": "cuda:99", "*": "cpu"}, DeviceError, r"'cuda:99'.*device\['head'\]"),
        (Net, {"head": 3}, ConfigError, r"found +'head': 3"),
        (Net, {}, ConfigError, r"found +no pattern"),
    ],
)
def test_placements_that_cannot_be(model, device, error, message):
    made = model()
    with pytest.raises(error, match="(?s)" + message) as caught:
        place(made, device)
    assert isinstance(caught.value, BurntError)
    assert set(parts.devices(made).values()) == {"cpu"}
    assert hooked(made) == []


def test_an_alternative_that_matches_nothing_is_a_warning():
    with pytest.warns(
        UserWarning, match="'tail' in the pattern 'head|tail' matches no parameter and no buff"
    ):
        place(Net(), {"head|tail": "cpu", "*": "meta"})


def test_a_training_finds_what_is_wrong_with_a_placement_before_it_writes(tmp_path):
    with pytest.raises(DeviceError, match="nowhere"):
        parts.train(tmp_path / "run", {"head": "nowhere", "*": "cpu"})
    with pytest.raises(ConfigError, match="did you mean 'head'"):
        parts.train(tmp_path / "run", {"hed": "cpu", "*": "cpu"})
    assert not (tmp_path / "run").exists()
    result, _ = parts.train(tmp_path / "run", {"head": "cpu", "*": "cpu"})
    assert hooked(result.model) == []


def test_the_optimizer_steps_each_device_by_itself():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    grads = {path: torch.randn_like(parameter) for path, parameter in model.named_parameters()}
    alone = copy.deepcopy(model[0])
    optim.Lion().step(0.1, alone, {"weight": grads["0.weight"], "bias": grads["0.bias"]})
    place(model, {"0": "cpu", "*": "meta"})
    grads = {path: g.to(device_of(model)) if path[0] == "1" else g for path, g in grads.items()}
    result = optim.Lion().step(0.1, model, grads)
    assert all(torch.equal(a, b) for a, b in zip(model[0].parameters(), alone.parameters(), strict=True))
    assert result.by == "burnt; torch: tensors on meta"
    with pytest.raises(OptimError, match=r"(?s)Lbfgs cannot step a model in parts.*cpu and meta"):
        optim.Lbfgs().check(0.1, model)


def crossings(report: object) -> list[str]:
    return [str(crossing) for crossing in report.crossings]


def test_check_and_summary_show_the_bytes_that_cross():
    tokens = burnt.TensorSpec((4, 5), torch.int64)
    places = {"embedding|blocks.1": "cpu", "*": "meta"}
    model = place(Net(), places)
    forward = ["into embedding: meta -> cpu, 160 B", "into blocks.0: cpu -> meta, 640 B"]
    report = burnt.check(model, tokens)
    assert crossings(report) == [
        forward[0],
        "into blocks.0: cpu -> meta, 640 B, 640 B back",
        "into blocks.1: meta -> cpu, 640 B, 640 B back",
        "into norm: cpu -> meta, 128 B, 128 B back",
    ]
    assert f"  crossings         {forward[0]}\n                    into blocks.0" in str(report)
    summary = burnt.summary(model, tokens)
    assert crossings(summary)[:2] == forward
    assert f"crossing     {forward[0]}\n" in str(summary)
    assert summary.as_dict()["crossings"][0]["nbytes"] == 160
    outputs = burnt.check(place(Net(), {"head": "meta", "*": "cpu"}), tokens)
    assert crossings(outputs)[-1] == "outputs: meta -> cpu, 48 B, 48 B back"
    assert crossings(burnt.check(place(model, "meta"), tokens)) == []
    assert "crossing" not in str(burnt.check(Net(), tokens)) + str(burnt.summary(Net(), tokens))


def test_what_is_computed_between_parts_is_where_its_inputs_are():
    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.b(self.a(x).view(-1, 2).relu()[:1] * 2)
            return self.c(y) + x

    model = place(Skip(), {"a|b": "meta", "*": "cpu"})
    assert crossings(burnt.check(model, burnt.TensorSpec((4, 2)), batch_sizes=[4])) == [
        "into a: cpu -> meta, 32 B",
        "into c: meta -> cpu, 8 B, 8 B back",
    ]


def test_a_training_checked_without_a_run_shows_placement_and_crossings(tmp_path):
    learner = Learner(Net(), optim.AdamW(), 1e-3, parts.step)
    places = {"embedding": "meta", "*": "cpu"}
    training = SupervisedTraining(
        tmp_path / "run", train=parts.loader(), duration="1 epoch", device=places, accumulate=2
    )
    text = str(training.check_only(learner))
    assert (
        "embedding: meta, *: cpu. Crossings of a step: a step has 2 of: into embedding: cpu -> meta" in text
    )
    assert set(parts.devices(learner.model).values()) == {"cpu"}  # nothing has moved


def test_without_a_device_a_training_leaves_a_placed_model_where_it_is(tmp_path):
    model = place(Net(), {"embedding|blocks.0.0|norm": "meta", "*": "cpu"})
    training = SupervisedTraining(tmp_path / "run", train=parts.loader(), duration="1 epoch")
    learner = Learner(model, optim.AdamW(), 1e-3, parts.step)
    # Tanh has no tensors, so that the first block is on one device.
    places = "embedding: meta, blocks.0: meta, norm: meta, *: cpu"
    for _ in range(2):
        assert f"{places}. Crossings of a step: into embedding: cpu -> meta" in str(
            training.check_only(learner)
        )
    assert hooked(model) == ["embedding", "blocks.0", "blocks.1", "norm", "head"]
    assert str(training.placement) == places
    # The next one is of a model that nobody has placed, or that was moved back.
    best = str(Placement(None))
    assert str(training.placement.for_model(Net())) == best
    assert str(training.placement.for_model(place(Net(), "cpu"))) == best
    assert str(Placement("cpu").for_model(model)) == "cpu"  # given explicitly


def test_the_placement_of_a_parameter_that_two_modules_share_can_be_restored():
    model = Tied()
    model.extra = nn.Linear(2, 2)
    place(model, {"embedding|head": "meta", "*": "cpu"})
    found = Placement.of(model)
    assert repr(found) == "embedding: meta, head: meta, *: cpu"
    found.apply(model)
    assert hooked(model) == ["embedding", "head", "extra"]


def test_a_rank_has_one_device():
    assert repr(Placement("cpu").of_rank(torch.device("meta"))) == "meta"
    with pytest.raises(UnsupportedError, match=r"(?s)several ranks cannot train a model in parts.*head: cpu"):
        Placement({"head": "cpu", "*": "meta"}).of_rank(torch.device("meta"))


# --- on a real second device ------------------------------------------------------------------------------

with_second_device = pytest.mark.skipif(second_device.compiler() is None, reason="needs g++ on Linux")


def run_on_two_devices(code: str, folder: object) -> str:
    """Run a program that has the device ``twin``; return what it prints."""
    head = """
        import sys
        from pathlib import Path
        from tests import second_device
        second_device.register(has_random_states={has_states})
        import torch, burnt
        from tests.train import parts
        folder = Path(sys.argv[1])
        PLACES = {{"embedding": "cpu", "*": "twin"}}
    """
    has_states = "dropout" in code
    program = textwrap.dedent(head).format(has_states=has_states) + textwrap.dedent(code)
    done = forked.run(program, folder)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.full
@with_second_device
def test_in_parts_equals_one_device(tmp_path):
    """Weights and metrics of each optimizer and setting; 16-bit elements are rounded in another order."""
    out = run_on_two_devices(
        """
        for optimizer in parts.OPTIMIZERS:
            for setting in parts.SETTINGS if optimizer in ("adamw", "groups") else ("plain", "clip_norm"):
                one, _ = parts.train(folder / f"{optimizer}-{setting}-one", "cpu", optimizer, setting)
                assert set(parts.devices(one.model).values()) == {"cpu"}
                for name, places in {
                    "embedding": PLACES,
                    "last": {"head|norm": "twin", "*": "cpu"},
                    "middle": {"blocks.0": "twin", "*": "cpu"},
                }.items() if setting in ("plain", "clip_norm") else [("embedding", PLACES)]:
                    two, _ = parts.train(
                        folder / f"{optimizer}-{setting}-{name}", places, optimizer, setting
                    )
                    assert set(parts.devices(two.model).values()) == {"cpu", "twin"}
                    limit = {"float16": 2e-2, "bfloat16": 0.15}.get(setting, 1e-9)
                    found = parts.difference(one.model, two.model)
                    assert found < limit, (optimizer, setting, name, found)
                    for key, value in one.values.items():
                        assert abs(two.values[key] - value) < (0.1 if "16" in setting else 1e-9), key
        print("compared")
        """,
        tmp_path,
    )
    assert out.endswith("compared\n")


@pytest.mark.full
@with_second_device
def test_in_parts_float32_resumes_predicts_evaluates_and_exports(tmp_path):
    run_on_two_devices(
        """
        import onnxruntime
        from burnt import onnx
        from burnt.train import evaluate
        whole, learner = parts.train(folder / "whole", PLACES, "adamw", dtype=torch.float32)
        single, _ = parts.train(folder / "single", "cpu", "adamw", dtype=torch.float32)
        assert parts.difference(whole.model, single.model) < 1e-5
        for places in (PLACES, "cpu", {"head": "cpu", "*": "twin"}):  # resumed also elsewhere
            name = f"run-{len(str(places))}"
            parts.train(folder / name, PLACES, "adamw", dtype=torch.float32, duration="6 steps")
            torch.manual_seed(9)
            resumed, _ = parts.train(folder / name, places, "adamw", dtype=torch.float32, resume=True)
            found = parts.difference(resumed.model, whole.model)
            assert found == 0 if places == PLACES else found < 1e-5, (places, found)
            assert all(abs(resumed.values[k] - v) < 1e-5 for k, v in whole.values.items())
        class Copied(torch.utils._python_dispatch.TorchDispatchMode):
            # The bytes that torch copies from one device to another.
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                result = func(*args, **(kwargs or {}))
                if func is torch.ops.aten._to_copy.default and args[0].device != result.device:
                    self.seen.append((str(args[0].device), str(result.device), result.nbytes))
                return result

        def check_crossings(model, tokens):
            said = [(c.source, c.target, c.nbytes) for c in burnt.check(model, tokens.to("twin")).crossings]
            model.eval()  # or the norm would change
            copied = Copied()
            copied.seen = []
            with copied:
                model(tokens.to("twin"))
            assert copied.seen[1:] == said, (copied.seen, said)  # without the copy of the tokens themselves
            assert len(said) == 2

        loaders = parts.loader(12, 2)
        assert abs(evaluate(learner, loaders)["loss"] - whole.values["valid/loss"]) < 1e-6
        tokens = torch.randint(11, (4, 5))
        check_crossings(whole.model, tokens)
        expected = single.model.eval()(tokens)
        assert float((burnt.predict(whole.model, tokens) - expected.detach()).abs().max()) < 1e-5
        exported = onnx.export(whole.model, tokens, folder / "net.onnx")
        session = onnxruntime.InferenceSession(str(folder / "net.onnx"))
        (logits,) = session.run(None, {session.get_inputs()[0].name: tokens.numpy()})
        assert float((torch.from_numpy(logits) - expected).abs().max()) < 1e-5
        loaded = burnt.load(folder / "whole", whole.position.step, model=parts.Net())
        assert set(parts.devices(loaded).values()) == {"cpu"}
        assert parts.difference(loaded, whole.model) == 0
        assert torch.equal(burnt.place(loaded, PLACES)(tokens).cpu(), whole.model.eval()(tokens).cpu())
        """,
        tmp_path,
    )


@pytest.mark.full
@with_second_device
def test_in_parts_several_optimizers_train_and_the_finders_search(tmp_path):
    run_on_two_devices(
        """
        from burnt.train import SupervisedTraining, find_batch_size, find_learning_rate
        THREE = (
            {"critic": "twin", "*": "cpu"},
            {"critic": "cpu", "*": "twin"},
            {"generator.0": "cpu", "*": "twin"},
        )

        def gan(name, device, duration="3 epochs", dtype=torch.float64, **settings):
            learner, loader = parts.gan_learner(dtype)
            training = SupervisedTraining(
                folder / name,
                **{"train": loader, "duration": duration, "monitor": "off", "device": device, "log_every": 1},
                **settings,
            )
            return training.run(learner)

        all_settings = {
            "plain": {},
            "clip": {"clip_norm": 0.05, "clip_value": 0.01, "on_nan": "skip"},
            "float16": {"precision": "float16", "dtype": torch.float32},
        }
        for setting, settings in all_settings.items():
            one = gan(f"{setting}-one", "cpu", **settings)
            # The second device also rounds the losses to 16 bits.
            limit = 0.2 if setting == "float16" else 1e-12
            for n, places in enumerate(THREE):
                two = gan(f"{setting}-{n}", places, **settings)
                assert set(parts.devices(two.model).values()) == {"cpu", "twin"}
                assert parts.difference(one.model, two.model) < limit, (setting, places)
                assert abs(two.values["train/loss"] - one.values["train/loss"]) < max(limit / 10, 1e-12)
        # Autocast is off in backward passes, on all devices of an optimizer's parameters.
        assert parts.casts and not any(any(enabled) for enabled in parts.casts)
        whole = gan("whole", "cpu")
        gan("half", THREE[0], "7 steps")
        resumed = gan("half", THREE[1], resume=True)
        assert parts.difference(resumed.model, whole.model) < 1e-12

        searches, sizes = [], []
        for places in ("cpu", *THREE, None):
            learner, loader = parts.gan_learner()
            if places is None:  # it stays where it was placed
                burnt.place(learner.model, THREE[2])
            before = parts.weights(learner.model)
            was = parts.devices(learner.model)
            searches.append(find_learning_rate(learner, loader, steps=10, low=1e-4, device=places).losses)
            sizes.append(find_batch_size(learner, loader, low=2, high=4, device=places, clip_norm=1.0))
            assert parts.devices(learner.model) == was
            assert all(torch.equal(before[path], now) for path, now in parts.weights(learner.model).items())
        assert all(abs(a - b) < 1e-12 for other in searches for a, b in zip(searches[0], other, strict=True))
        assert [[trial.batch_size for trial in size.trials] for size in sizes] == [[2, 4]] * 5
        """,
        tmp_path,
    )


@pytest.mark.full
@with_second_device
def test_in_parts_placed_by_hand_checkpoints_activations_and_swaps(tmp_path):
    run_on_two_devices(
        """
        import copy, os
        from burnt import optim
        from burnt.train import Learner, StepOutput, SupervisedTraining, evaluate
        restored, set_state = [], torch.twin.set_rng_state
        torch.twin.set_rng_state = lambda state, device=0: (restored.append(device), set_state(state))

        def step(model, batch):
            return StepOutput(model(batch["x"]).square().mean())

        def train(name, device, places=None, **settings):
            torch.manual_seed(0)
            model = parts.Deep()
            if places is not None:
                burnt.place(model, places)
            batches = [{"x": torch.randn(16, 4, dtype=torch.float64)}] * 4
            settings |= {"train": batches, "duration": "2 epochs", "monitor": "off", "device": device}
            training = SupervisedTraining(folder / name, **settings)
            torch.manual_seed(1)
            return training.run(Learner(model, optim.AdamW(), 1e-2, step=step)).model, training

        one, training = train("one", "cpu")
        for number, places in enumerate(
            ({"block.2": "twin", "*": "cpu"}, {"block.0": "twin", "*": "cpu"}, {"first": "cpu", "*": "twin"})
        ):
            by_hand, training = train(f"hand-{number}", None, places)
            one_part, rest = (
                f"{path}: {device}".replace("twin", "twin:0") for path, device in places.items()
            )
            assert str(training.placement) == f"{one_part}, {rest}"
            assert set(parts.devices(by_hand).values()) == {"cpu", "twin"}
            assert parts.difference(by_hand, one) < 1e-12
            moved, _ = train(f"moved-{number}", "twin", places)  # given explicitly, it moves all
            assert set(parts.devices(moved).values()) == {"twin"}
            assert parts.difference(moved, one) < 1e-12
            restored.clear()
            repeated, _ = train(f"repeated-{number}", places, checkpoint_activations="block")
            # The state that dropout draws from on the device inside is set and put back in each of 8 steps.
            assert len(restored) >= 16, restored
            assert parts.difference(repeated, one) < 1e-12
        back, _ = train("back", None, {"first": "cpu", "*": "twin"})
        batch = [{"x": torch.randn(4, 4, dtype=torch.float64)}]
        losses = [evaluate(model, batch, step=step)["loss"] for model in (back, one)]
        assert abs(losses[0] - losses[1]) < 1e-12

        tokens = torch.randint(11, (4, 5))
        whole = parts.Net()
        placed = burnt.place(copy.deepcopy(whole), PLACES)
        graphs = []
        compiled = torch.compile(placed, backend=lambda graph, _: (graphs.append(graph), graph.forward)[1])
        for _ in range(3):
            compiled(torch.randint(11, (4, 5)))
        assert len(graphs) == 1  # the hooks are traced, and guard no tensor's id

        os.environ["BURNT_SWAP_CACHE"] = "0"
        report = burnt.swap(placed, only="Linear", verify=tokens)
        errors = [site.error for site in report.plan.sites if site.error is not None]
        assert errors and max(errors) < 1e-5, report
        expected, found = whole(tokens), placed(tokens)
        expected.square().sum().backward()
        found.square().sum().backward()
        assert float((found.cpu() - expected).abs().max()) < 1e-5
        for p, q in zip(placed.parameters(), whole.parameters(), strict=True):
            assert p.grad.device == p.device
            assert float((p.grad.cpu() - q.grad).abs().max()) < 1e-4
        """,
        tmp_path,
    )


@pytest.mark.full
@with_second_device
def test_in_parts_resumes_in_other_places(tmp_path):
    run_on_two_devices(
        """
        from burnt.train import EarlyStopping
        OTHER = {"head|norm": "cpu", "*": "twin"}
        for optimizer, setting in [*((name, "plain") for name in parts.OPTIMIZERS), ("adamw", "accumulate")]:
            name = f"{optimizer}-{setting}"
            whole, _ = parts.train(folder / f"{name}-one", "cpu", optimizer, setting)
            first, _ = parts.train(folder / name, PLACES, optimizer, setting, duration="6 steps")
            resumed, _ = parts.train(folder / name, OTHER, optimizer, setting, resume=True)
            assert parts.devices(resumed.model) != parts.devices(first.model)
            assert parts.difference(resumed.model, whole.model) < 1e-12, name
        for setting in ("float16", "bfloat16"):  # in the same places to the bit
            whole, _ = parts.train(folder / f"{setting}-whole", PLACES, "adamw", setting)
            parts.train(folder / setting, PLACES, "adamw", setting, duration="6 steps")
            resumed, _ = parts.train(folder / setting, PLACES, "adamw", setting, resume=True)
            assert parts.difference(resumed.model, whole.model) == 0
        stopping = {"stopping": EarlyStopping("loss", patience="1 epoch", restore_best=True)}
        one, _ = parts.train(folder / "best-one", "cpu", duration="6 epochs", **stopping)
        two, _ = parts.train(folder / "best-two", PLACES, duration="6 epochs", **stopping)
        assert one.reason == two.reason == "stopped early"
        assert parts.difference(one.model, two.model) < 1e-12
        """,
        tmp_path,
    )
