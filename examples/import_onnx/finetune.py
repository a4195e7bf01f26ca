"""Import digits.onnx, which scikit-learn has trained, fine-tune it, quantize it and export it again.

    python examples/import_onnx/finetune.py [--epochs 20] [--out tuned]

Prints accuracy on held-out digits and the size of the file, of the network as it came, fine-tuned, and
quantized. The last two are measured in ONNX Runtime, from the files that were written.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F

import burnt
from burnt import optim
from burnt.data import Batch, Loader, TensorDataset
from burnt.train import ClassificationOutput, Learner, SupervisedTraining
from burnt.train.metrics import Accuracy

GIVEN = Path(__file__).with_name("digits.onnx")
TEST = 400  # the last pictures, which neither scikit-learn nor burnt is trained on


def step(model: torch.nn.Module, batch: Batch) -> ClassificationOutput:
    """The file returns labels and probabilities; the cross-entropy takes the logarithm of the latter."""
    _, probabilities = model(batch.images)
    log_probabilities = probabilities.clamp(min=1e-12).log()
    loss = F.nll_loss(log_probabilities, batch.labels)
    return ClassificationOutput(loss, log_probabilities, batch.labels)


def accuracy(file: Path, images: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of right labels of a file in ONNX Runtime."""
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    found = session.run(None, {session.get_inputs()[0].name: images})[0]
    return float((found == labels).mean())


def main(arguments: list[str] | None = None) -> dict[str, tuple[float, int]]:
    """Fine-tune, quantize and export; return accuracy and bytes of each file."""
    parser = argparse.ArgumentParser(description="fine-tune and quantize an ONNX file")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("tuned"), help="the folder to write to")
    options = parser.parse_args(arguments)
    options.out.mkdir(exist_ok=True)
    images, labels = load_digits(return_X_y=True)
    images = images.astype("float32")

    model = burnt.onnx.load(GIVEN)
    print(model)

    torch.manual_seed(0)
    dataset = TensorDataset(
        images=torch.from_numpy(images[:-TEST]), labels=torch.from_numpy(labels[:-TEST]).long()
    )
    train = Loader(dataset, 64, shuffle=True, seed=0)
    learner = Learner(
        model,
        optim.AdamW(weight_decay=0.05),
        optim.Cosine(3e-3, steps=options.epochs * len(train)),
        step=step,
    )
    training = SupervisedTraining(
        options.out / "run",
        train=train,
        duration=f"{options.epochs} epochs",
        metrics=[Accuracy()],
        monitor="off",
    )
    training.run(learner)

    model.eval()
    example = torch.from_numpy(images[:4])
    files = {
        "given": GIVEN,
        "fine-tuned": options.out / "digits.onnx",
        "int8": options.out / "digits-int8.onnx",
    }
    burnt.onnx.export(model, example, files["fine-tuned"])
    print(burnt.quantize(model, "int8-static", calibrate=[torch.from_numpy(images[:256])]))
    burnt.onnx.export(model, example, files["int8"])

    found = {
        name: (accuracy(file, images[-TEST:], labels[-TEST:]), file.stat().st_size)
        for name, file in files.items()
    }
    print(f"\n{'file':<12}{'accuracy':>10}{'bytes':>10}")
    for name, (share, size) in found.items():
        print(f"{name:<12}{share:>10.1%}{size:>10,}")
    return found


if __name__ == "__main__":
    main()
