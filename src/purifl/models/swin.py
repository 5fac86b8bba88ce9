"""A small Swin transformer: attention inside windows that shift from block to block."""

from __future__ import annotations

import itertools
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention

from purifl.models.base import ModelSpec, image_shape, models

WINDOW = 4
DEPTHS, DIMS, HEADS = (2, 2), (64, 128), (2, 4)


@models.register("swin")
class Swin(ModelSpec):
    """A small Swin transformer: windows of 4x4 tokens, two stages of two blocks, 64 and 128 wide.

    A token is a patch of 2x2 pixels, or one pixel in images under 16 pixels.
    """

    reference: ClassVar[str] = "Liu et al., Swin Transformer, ICCV 2021"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Patches, stages with a merging of patches between them, mean over the tokens, linear."""
        patch = 1 if min(shape[1:], default=0) < 16 else 2
        channels, height, width = image_shape(self.name, shape, smallest=8, patch=patch)
        size = (height // patch, width // patch)
        layers: list[nn.Module] = [PatchEmbedding(channels, DIMS[0], patch)]
        for stage, (depth, dim, heads) in enumerate(zip(DEPTHS, DIMS, HEADS, strict=True)):
            if stage:
                layers.append(PatchMerging(DIMS[stage - 1], dim))
                size = (-(-size[0] // 2), -(-size[1] // 2))
            layers += [Block(dim, heads, size, WINDOW // 2 * (k % 2)) for k in range(depth)]
        return nn.Sequential(*layers, nn.LayerNorm(DIMS[-1]), MeanToken(), nn.Linear(DIMS[-1], classes))


class PatchEmbedding(nn.Module):
    """Images (b, c, h, w) to normalised tokens (b, h/p, w/p, dim)."""

    def __init__(self, channels: int, dim: int, patch: int) -> None:
        super().__init__()
        self.embed = nn.Conv2d(channels, dim, patch, stride=patch)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        """The tokens of a batch of images."""
        tokens: Tensor = self.norm(self.embed(x).permute(0, 2, 3, 1))
        return tokens


class PatchMerging(nn.Module):
    """Each 2x2 neighbourhood of tokens becomes one; odd sizes are padded with zeros."""

    def __init__(self, before: int, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * before)
        self.reduce = nn.Linear(4 * before, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Half the height and width."""
        merged: Tensor = self.reduce(self.norm(to_windows(_pad(x, 2), 2).flatten(3)))
        return merged


class MeanToken(nn.Module):
    """The mean over all tokens."""

    def forward(self, x: Tensor) -> Tensor:
        """(b, h, w, dim) to (b, dim)."""
        return x.mean((1, 2))


class Block(nn.Module):
    """x + window_attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, dim: int, heads: int, size: tuple[int, int], shift: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = WindowAttention(dim, heads, size, shift)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        """One pre-norm step."""
        attended: Tensor = x + self.attention(self.norm1(x))
        result: Tensor = attended + self.mlp(self.norm2(attended))
        return result


class WindowAttention(nn.Module):
    """softmax(q kᵀ / √d + B + mask) v among the tokens of each window, B learned per relative position.

    The grid is padded to whole windows and rolled by ``shift``. The mask keeps apart what the roll brought
    together from opposite edges, and keeps padding out of everything real.
    """

    keep: Tensor
    relative: Tensor

    def __init__(self, dim: int, heads: int, size: tuple[int, int], shift: int) -> None:
        super().__init__()
        self.heads = heads
        self.shift = tuple(shift if length > WINDOW else 0 for length in size)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.bias = nn.Parameter(0.02 * torch.randn(heads, (2 * WINDOW - 1) ** 2))
        self.register_buffer("relative", relative_index(), persistent=False)
        self.register_buffer("keep", window_mask(size, self.shift), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Attend within the windows of a grid of tokens (b, h, w, dim)."""
        height, width = x.shape[1:3]
        grid = torch.roll(_pad(x, WINDOW), [-s for s in self.shift], (1, 2))
        cells = to_windows(grid, WINDOW).flatten(3, 4)
        q, k, v = self.qkv(cells).unflatten(-1, (3, self.heads, -1)).movedim((-3, -2), (0, 4))
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5 + self.bias[:, self.relative]
        weights = scores.masked_fill(~self.keep, float("-inf")).softmax(-1)
        mixed = self.out((weights @ v).movedim(3, 4).flatten(4)).unflatten(3, (WINDOW, WINDOW))
        whole = torch.roll(from_windows(mixed), self.shift, (1, 2))
        return whole[:, :height, :width]


def to_windows(x: Tensor, window: int) -> Tensor:
    """(b, h, w, ...) to (b, h/window, w/window, window, window, ...)."""
    b, h, w, *rest = x.shape
    return x.reshape(b, h // window, window, w // window, window, *rest).transpose(2, 3)


def from_windows(x: Tensor) -> Tensor:
    """The inverse of :func:`to_windows`."""
    return x.transpose(2, 3).flatten(3, 4).flatten(1, 2)


def relative_index() -> Tensor:
    """Which entry of the bias table belongs to each pair of positions in a window."""
    rows, columns = torch.tensor(list(itertools.product(range(WINDOW), repeat=2))).T
    down: Tensor = rows[:, None] - rows + WINDOW - 1
    right: Tensor = columns[:, None] - columns + WINDOW - 1
    return down * (2 * WINDOW - 1) + right


def window_mask(size: tuple[int, int], shift: tuple[int, ...]) -> Tensor:
    """Which pairs may attend, (h/window, w/window, 1, window², window²): those with the same region.

    Along each axis a position of the rolled grid is wrapped around or not, and padding or not.
    """
    labels = []
    for length, offset in zip(size, shift, strict=True):
        whole = -(-length // WINDOW) * WINDOW
        source = torch.arange(whole) + offset
        labels.append((source >= whole).int() + 2 * (source % whole >= length).int())
    region = to_windows((labels[0][:, None] * 4 + labels[1])[None], WINDOW)[0].flatten(2)
    return (region[..., :, None] == region[..., None, :]).unsqueeze(2)


def _pad(x: Tensor, multiple: int) -> Tensor:
    """Zeros below and to the right, up to a multiple in height and width."""
    return F.pad(x, (0, 0, 0, -x.shape[2] % multiple, 0, -x.shape[1] % multiple))
