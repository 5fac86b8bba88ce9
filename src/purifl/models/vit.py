"""A small vision transformer."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor, nn

from purifl.models.base import ModelSpec, image_shape, models


@models.register("vit")
class Vit(ModelSpec):
    """A small vision transformer: pre-norm blocks, learned positions, mean pooling, no dropout."""

    reference: ClassVar[str] = "Dosovitskiy et al., An Image is Worth 16x16 Words, ICLR 2021"

    patch: int | None = Field(
        None, ge=1, description="patch size in pixels; by default 4, or 2 for images under 16 pixels"
    )
    dim: int = Field(128, ge=1, description="width of a token")
    depth: int = Field(6, ge=1, description="number of blocks")
    heads: int = Field(4, ge=1, description="attention heads; they divide dim")

    @field_validator("heads")
    @classmethod
    def _divides_dim(cls, heads: int, info: ValidationInfo) -> int:
        if "dim" in info.data and info.data["dim"] % heads:
            raise ValueError(f"it has to divide dim = {info.data['dim']}")
        return heads

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """The transformer for images of ``shape``."""
        patch = self.patch or (2 if min(shape[1:], default=0) < 16 else 4)
        channels, height, width = image_shape(self.name, shape, smallest=patch, patch=patch)
        tokens = (height // patch) * (width // patch)
        return VisionTransformer(self, nn.Conv2d(channels, self.dim, patch, stride=patch), tokens, classes)


class VisionTransformer(nn.Module):
    """Patches to tokens, blocks, mean over the tokens, linear."""

    def __init__(self, spec: Vit, embed: nn.Module, tokens: int, classes: int) -> None:
        super().__init__()
        self.embed = embed
        self.positions = nn.Parameter(0.02 * torch.randn(tokens, spec.dim))
        self.blocks = nn.Sequential(*(Block(spec.dim, spec.heads) for _ in range(spec.depth)))
        self.norm = nn.LayerNorm(spec.dim)
        self.head = nn.Linear(spec.dim, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores of a batch of images."""
        tokens = self.embed(x).flatten(2).transpose(1, 2) + self.positions
        scores: Tensor = self.head(self.norm(self.blocks(tokens)).mean(1))
        return scores


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = SelfAttention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        """One pre-norm step."""
        attended: Tensor = x + self.attention(self.norm1(x))
        result: Tensor = attended + self.mlp(self.norm2(attended))
        return result


class SelfAttention(nn.Module):
    """softmax(q kᵀ / √d) v in each head, over all tokens.

    Written out: torch's fused kernels have no batching rule for ``vmap`` on the CPU and no deterministic gradient on
    the GPU, and its plain one cannot be differentiated under ``vmap`` in bf16.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Attend among the tokens of each sample."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        weights = ((q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)).softmax(-1)
        result: Tensor = self.out((weights @ v).transpose(1, 2).flatten(2))
        return result
