"""ResNet-18 for small images, with group normalisation."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention

from purifl.models.base import ModelSpec, image_shape, models

GROUPS = 8
WIDTHS = (64, 128, 256, 512)
BLOCKS_PER_STAGE = 2


@models.register("resnet18")
class ResNet18(ModelSpec):
    """ResNet-18 with the 3x3 stem for small images and group normalisation instead of batch normalisation.

    Eight groups throughout: a group then has at least 8 channels, and enough values to normalise over
    even where an 8x8 image has shrunk to a single pixel.
    """

    reference: ClassVar[str] = "He et al., CVPR 2016; Wu and He, Group Normalization, ECCV 2018"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Stem, four stages of two blocks, global average and a linear layer."""
        channels, _, _ = image_shape(self.name, shape, smallest=8)
        layers: list[nn.Module] = [*_conv_norm(channels, WIDTHS[0], 3), nn.ReLU()]
        before = WIDTHS[0]
        for width in WIDTHS:
            for _ in range(BLOCKS_PER_STAGE):
                layers.append(BasicBlock(before, width, stride=1 if before == width else 2))
                before = width
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


class BasicBlock(nn.Module):
    """relu(f(x) + shortcut(x)), f being two normalised 3x3 convolutions."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*_conv_norm(before, width, 3, stride), nn.ReLU(), *_conv_norm(width, width, 3))
        same = stride == 1 and before == width
        self.shortcut = nn.Identity() if same else nn.Sequential(*_conv_norm(before, width, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        """One residual step."""
        return F.relu(self.body(x) + self.shortcut(x))


def _conv_norm(before: int, width: int, kernel: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    conv = nn.Conv2d(before, width, kernel, stride, padding=kernel // 2, bias=False)
    return conv, nn.GroupNorm(GROUPS, width)
