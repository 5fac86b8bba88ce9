"""Convolutions and max-pooling for many clients at once, in place of torch's where a model calls them.

``vmap`` turns a convolution whose weights differ from client to client into a grouped one, for which libraries
have no fast kernel in full precision. Within :class:`StackedLayers` those calls go to our kernels instead; what
they do not cover (dilation, groups, overlapping windows, other dtypes) stays with torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F  # noqa: N812 - torch's own convention
from torch.nn.grad import conv2d_input, conv2d_weight
from torch.overrides import TorchFunctionMode

from purifl.engines import kernels

Dims = Sequence[int | None]


_MAX_POOLING = {torch.max_pool2d, F.max_pool2d, F._max_pool2d}  # type: ignore[attr-defined]

_ONE_ORDER = {Tensor.view, torch.group_norm, F.group_norm, F.adaptive_avg_pool2d, F.avg_pool2d, F.instance_norm}
"""What under vmap does not take images whose channels lie innermost in memory, as our layers leave them."""


class StackedLayers(TorchFunctionMode):
    """Within it, ``conv2d`` and ``max_pool2d`` of what ``vmap`` runs over use the kernels for many clients."""

    def __init__(self, precision: str) -> None:
        super().__init__()
        self.precision = precision

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        """Our layer where it applies, torch's otherwise."""
        kwargs = kwargs or {}
        if func is torch.conv2d and (given := _plain_convolution(*args, **kwargs)):
            x, weight, bias, stride, padding = given
            if bias is None:
                bias = weight.new_zeros(len(weight))
            return _Convolution.apply(x, weight, bias, stride, padding, self.precision)[0]
        if func in _MAX_POOLING and (found := _plain_pooling(*args, **kwargs)):
            return _Pooling.apply(*found)[0]
        if func in _ONE_ORDER:
            args = tuple(x.contiguous() if isinstance(x, Tensor) and x.dim() == 4 else x for x in args)
        return func(*args, **kwargs)


def _pair(value: int | Sequence[int]) -> tuple[int, ...]:
    return (value, value) if isinstance(value, int) else tuple(value) * (2 if len(value) == 1 else 1)


def _plain_convolution(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> tuple[Tensor, Tensor, Tensor | None, int, tuple[int, int]] | None:  # fmt: skip
    """The arguments, if it is a convolution that the kernels can do."""
    if isinstance(padding, str) or groups != 1 or _pair(dilation) != (1, 1) or input.dtype != torch.float32:
        return None
    steps, pads = _pair(stride), _pair(padding)
    if len(set(steps)) != 1 or len(pads) != 2 or input.dim() != 4 or pads[0] >= weight.shape[-2]:
        return None
    return (input, weight, bias, steps[0], (pads[0], pads[1])) if pads[1] < weight.shape[-1] else None


def _plain_pooling(
    input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
    return_indices: bool = False,
) -> tuple[Tensor, int] | None:  # fmt: skip
    """Images and size of windows, if these are square, do not overlap, and a byte can count their pixels."""
    sizes, steps = _pair(kernel_size), _pair(stride or kernel_size)
    plain = set(_pair(padding)) == {0} and set(_pair(dilation)) == {1} and not ceil_mode and not return_indices
    if not plain or len(set(sizes + steps)) != 1 or input.dtype != torch.float32 or input.dim() != 4 or sizes[0] > 15:
        return None
    return input, sizes[0]


def _stack(clients: int, dims: Dims, *tensors: Tensor) -> list[Tensor]:
    """The tensors with the clients in front; what all clients share is repeated without a copy."""
    return [
        x.expand(clients, *x.shape) if dim is None else x.movedim(dim, 0) for x, dim in zip(tensors, dims, strict=False)
    ]


def _padded(x: Tensor, padding: tuple[int, int]) -> Tensor:
    """(A, B, C, H, W) as zero-padded (A, B, H + 2p, W + 2q, C) in memory; what all clients share stays one copy."""
    shared = x.stride(0) == 0
    front = x[:1] if shared else x
    size = (x.shape[-2] + 2 * padding[0], x.shape[-1] + 2 * padding[1])
    padded = kernels.spread(front.permute(0, 1, 3, 4, 2).contiguous(), size, padding)
    return padded.expand(len(x), *padded.shape[1:]) if shared else padded


class _Convolution(Function):
    """y = x * weight + bias for images (B, C, H, W), and the padded images, which the weights' gradient needs."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, *settings: Any) -> tuple[Tensor, Tensor]:
        """One client alone."""
        stride, padding, _ = settings
        return F.conv2d(x, weight, bias, stride, padding), _padded(x[None], padding)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        """The gradients need the images and the weights."""
        x, weight, _, *ctx.settings = inputs
        ctx.size = tuple(x.shape[-2:])
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1], weight)

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Tensor) -> Any:
        """For the images, if somebody wants it, for the weights and for the bias."""
        padded, weight = ctx.saved_tensors
        for_x = _InputGradient.apply(g, weight, ctx.size, *ctx.settings) if ctx.needs_input_grad[0] else None
        for_weight, for_bias = _WeightGradient.apply(padded, g, tuple(weight.shape[-2:]), *ctx.settings)
        return for_x, for_weight, for_bias, None, None, None

    @staticmethod
    def vmap(info: Any, dims: Dims, x: Tensor, weight: Tensor, bias: Tensor, *settings: Any) -> Any:
        """All clients at once."""
        stride, padding, precision = settings
        x, weight, bias = _stack(info.batch_size, dims, x, weight, bias)
        matrix = weight.permute(0, 3, 4, 2, 1).flatten(1, 3).contiguous()
        padded = _padded(x, padding)
        y = kernels.convolve(padded, matrix, bias.contiguous(), weight.shape[-1], stride, precision)
        return (y.permute(0, 1, 4, 2, 3), padded), (0, 0)


class _InputGradient(Function):
    """The gradient for the images: the output's gradient, spread out by the stride, with the flipped weights."""

    @staticmethod
    def forward(g: Tensor, weight: Tensor, size: tuple[int, int], *settings: Any) -> Tensor:
        """One client alone."""
        stride, padding, _ = settings
        shape = (len(g), weight.shape[1], *size)
        return conv2d_input(shape, weight, g, stride, padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nobody differentiates twice."""

    @staticmethod
    def vmap(
        info: Any, dims: Dims, g: Tensor, weight: Tensor, size: tuple[int, int], *settings: Any
    ) -> tuple[Tensor, int]:
        """All clients at once."""
        stride, padding, precision = settings
        g, weight = _stack(info.batch_size, dims, g, weight)
        kernel = weight.shape[-2:]
        around = (size[0] + kernel[0] - 1, size[1] + kernel[1] - 1)
        corner = (kernel[0] - 1 - padding[0], kernel[1] - 1 - padding[1])
        spread = kernels.spread(g.permute(0, 1, 3, 4, 2).contiguous(), around, corner, stride)
        matrix = weight.flip(-1, -2).permute(0, 3, 4, 1, 2).flatten(1, 3).contiguous()
        none = matrix.new_zeros(len(matrix), matrix.shape[-1])
        return kernels.convolve(spread, matrix, none, kernel[1], 1, precision).permute(0, 1, 4, 2, 3), 0


class _WeightGradient(Function):
    """The gradients for weights and bias, from padded images (B, H, W, C)."""

    @staticmethod
    def forward(padded: Tensor, g: Tensor, kernel: tuple[int, int], *settings: Any) -> tuple[Tensor, Tensor]:
        """One client alone."""
        stride, _, _ = settings
        x = padded.permute(0, 3, 1, 2)
        shape = (g.shape[1], x.shape[1], *kernel)
        return conv2d_weight(x, shape, g, stride), g.sum((0, 2, 3))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nobody differentiates twice."""

    @staticmethod
    def vmap(info: Any, dims: Dims, padded: Tensor, g: Tensor, kernel: tuple[int, int], *settings: Any) -> Any:
        """All clients at once."""
        stride, _, precision = settings
        padded, g = _stack(info.batch_size, dims, padded, g)
        gradient = g.permute(0, 1, 3, 4, 2).contiguous()
        matrix, bias = kernels.correlate(padded, gradient, kernel, stride, precision)
        return (matrix.unflatten(1, (*kernel, padded.shape[-1])).permute(0, 4, 3, 1, 2), bias), (0, 0)


class _Pooling(Function):
    """Maxima of square windows that do not overlap, and their places."""

    @staticmethod
    def forward(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """One client alone."""
        return F.max_pool2d(x, size, return_indices=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """The gradient goes where the maximum was."""
        x, ctx.size = inputs
        ctx.shape = tuple(x.shape[-2:])
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor, None]:
        """To the place of each maximum."""
        return _Unpooling.apply(g, *ctx.saved_tensors, ctx.shape, ctx.size), None

    @staticmethod
    def vmap(info: Any, dims: Dims, x: Tensor, size: int) -> Any:
        """All clients at once."""
        (x,) = _stack(info.batch_size, dims, x)
        maxima, places = kernels.pool(x.permute(0, 1, 3, 4, 2).contiguous(), size)
        return (maxima.permute(0, 1, 4, 2, 3), places.permute(0, 1, 4, 2, 3)), (0, 0)


class _Unpooling(Function):
    """The gradient of :class:`_Pooling`."""

    @staticmethod
    def forward(g: Tensor, places: Tensor, shape: tuple[int, int], size: int) -> Tensor:
        """One client alone."""
        return F.max_unpool2d(g, places, [size], output_size=list(shape))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nobody differentiates twice."""

    @staticmethod
    def vmap(info: Any, dims: Dims, g: Tensor, places: Tensor, shape: tuple[int, int], size: int) -> tuple[Tensor, int]:
        """All clients at once."""
        g, places = (x.permute(0, 1, 3, 4, 2).contiguous() for x in _stack(info.batch_size, dims, g, places))
        return kernels.unpool(g, places, shape, size).permute(0, 1, 4, 2, 3), 0
