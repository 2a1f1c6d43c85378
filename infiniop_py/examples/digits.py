"""``python -m infiniop_py.examples.digits``: trains a small gated MLP on real hand-written digits.

Forward, with x (images, 64), the pixels of each image centred and scaled::

    gate, up = x @ w_gate, x @ w_up              (images, hidden)
    h        = silu(gate) * up                   (images, hidden)
    scores   = h @ w_out + b_out                 (images, 10)

and backward, with d_... the derivatives of the cross entropy::

    d_w_out  = h.T @ d_scores                    d_b_out  = ones.T @ d_scores
    d_h      = d_scores @ w_out.T
    d_gate   = d_h * up * silu'(gate)            d_w_gate = x.T @ d_gate
    d_up     = d_h * silu(gate)                  d_w_up   = x.T @ d_up

Products and sums are this package's gemm, mul, add and add_rms_norm on strided views: no matrix is ever
transposed in memory. The curves, silu and softmax, are NumPy's. digits_LICENSE.txt says where the images come
from. Exit status 1 if fewer than 95 % of the test images are recognised.
"""

from __future__ import annotations

import sys
from importlib.resources import as_file, files
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np

from infiniop_py import add, add_rms_norm, gemm, gemm_, mul

Array: TypeAlias = "np.ndarray[Any, Any]"
Parameters: TypeAlias = "dict[str, Array]"

SEED = 1
HIDDEN = 128
BATCH = 32
EPOCHS = 15
RATE = 0.02
MOMENTUM = 0.9
WANTED = 0.95


def load() -> tuple[Array, Array]:
    """Return pixels (1797, 64), F32 from 0 to 16, and labels (1797,)."""
    with as_file(files(__package__) / "digits.npz") as path, np.load(path) as data:
        pixels: Array = data["images"].reshape(-1, 64).astype(np.float32)
        return pixels, data["labels"]


def normalise(pixels: Array, mean: Array) -> Array:
    """Subtract the mean image, then scale each image to a mean square of 1."""
    minus_mean = np.broadcast_to(-mean, pixels.shape)  # stride 0: one row seen as many
    x: Array
    x, _ = add_rms_norm(pixels, minus_mean, np.ones_like(mean))
    return x


def new_parameters(rng: np.random.Generator) -> Parameters:
    def matrix(inputs: int, outputs: int) -> Array:
        w = rng.standard_normal((inputs, outputs), np.float32)
        w *= np.float32(inputs**-0.5)
        return w

    return {
        "w_gate": matrix(64, HIDDEN),
        "w_up": matrix(64, HIDDEN),
        "w_out": matrix(HIDDEN, 10),
        "b_out": np.zeros((1, 10), np.float32),
    }


def silu(x: Array) -> tuple[Array, Array]:
    """Return x * sigmoid(x) and its derivative."""
    sigmoid = 1 / (1 + np.exp(-x))
    return x * sigmoid, sigmoid * (1 + x * (1 - sigmoid))


def softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    probabilities: Array = powers / powers.sum(axis=1, keepdims=True)
    return probabilities


class Forward:
    """The scores of the ten digits for each image of x, and what the way back needs."""

    def __init__(self, p: Parameters, x: Array) -> None:
        self.gate, self.slope = silu(gemm(x, p["w_gate"]))
        self.up = gemm(x, p["w_up"])
        self.h = mul(self.gate, self.up)
        self.scores = add(gemm(self.h, p["w_out"]), p["b_out"])


def train_step(p: Parameters, velocity: Parameters, x: Array, labels: Array) -> float:
    """Gradient descent with momentum on one batch, in place; returns the batch's mean cross entropy."""
    f = Forward(p, x)
    probabilities = softmax(f.scores)
    rows = np.arange(len(x))
    loss = -np.log(probabilities[rows, labels]).mean()

    d_scores = probabilities
    d_scores[rows, labels] -= 1
    d_h = gemm(d_scores, p["w_out"].T)
    gradients = {  # of the batch's summed loss, as the factors of a product
        "w_gate": (x.T, mul(mul(d_h, f.up), f.slope)),
        "w_up": (x.T, mul(d_h, f.gate)),
        "w_out": (f.h.T, d_scores),
        "b_out": (np.ones((1, len(x)), x.dtype), d_scores),
    }
    for name, (a, b) in gradients.items():
        # One gemm computes the mean gradient and adds it to what is left of the velocity.
        gemm_(velocity[name], a, b, alpha=-RATE / len(x), beta=MOMENTUM)
        add(p[name], velocity[name], out=p[name])
    return float(loss)


def accuracy(p: Parameters, x: Array, labels: Array) -> float:
    return float(np.mean(Forward(p, x).scores.argmax(axis=1) == labels))


def main() -> int:
    """Train, test, and return the exit status."""
    rng = np.random.default_rng(SEED)
    pixels, labels = load()
    order = rng.permutation(len(pixels))
    test, train = np.split(order, [len(order) // 4])
    mean = pixels[train].mean(axis=0)
    x_train, x_test = normalise(pixels[train], mean), normalise(pixels[test], mean)
    y_train, y_test = labels[train], labels[test]
    print(f"{len(train)} images to train on, {len(test)} others to test on")

    p = new_parameters(rng)
    velocity = {name: np.zeros_like(value) for name, value in p.items()}
    start = perf_counter()
    for epoch in range(1, EPOCHS + 1):
        shuffled = rng.permutation(len(train))
        batches = [shuffled[i : i + BATCH] for i in range(0, len(train), BATCH)]
        loss = np.mean([train_step(p, velocity, x_train[batch], y_train[batch]) for batch in batches])
        if epoch % 3 == 0:
            print(f"epoch {epoch:2}: loss {loss:.4f}, training accuracy {accuracy(p, x_train, y_train):.1%}")

    reached = accuracy(p, x_test, y_test)
    print(f"test accuracy {reached:.2%} after {perf_counter() - start:.1f} s")
    if reached < WANTED:
        print(f"FAILED: needs at least {WANTED:.0%}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
