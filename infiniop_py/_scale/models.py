"""Shapes of decoders, as their makers published them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Model:
    """A decoder of equal layers: attention with `kv_heads` shared keys and values, a gated MLP, RMSNorm
    before each, no biases, and a product with the vocabulary that shares nothing with the embedding.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int

    @property
    def layer_parameters(self) -> int:
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return attention + 3 * self.hidden * self.ffn + 2 * self.hidden

    @property
    def parameters(self) -> int:
        return self.layers * self.layer_parameters + 2 * self.vocab * self.hidden + self.hidden


MODELS = {
    "llama-7b": Model(32, 4096, 32, 32, 128, 11008, 32000),
    "llama-13b": Model(40, 5120, 40, 40, 128, 13824, 32000),
    "llama-70b": Model(80, 8192, 64, 8, 128, 28672, 32000),
    "llama3-8b": Model(32, 4096, 32, 8, 128, 14336, 128256),
    "llama3-70b": Model(80, 8192, 64, 8, 128, 28672, 128256),
    "llama3-405b": Model(126, 16384, 128, 8, 128, 53248, 128256),
    "mistral-7b": Model(32, 4096, 32, 8, 128, 14336, 32000),
}
