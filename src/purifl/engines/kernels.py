"""Triton kernels for the two layers that libraries do slowly when every client has weights of its own.

A convolution over A clients at once is A matrix products whose left-hand sides are patches of the images. Written
here so that the patches are never stored: a product reads them from the zero-padded images (A, B, H, W, C). The
gradient for the input is the same product with flipped weights. ``precision`` is that of the products: ``tf32x3``
is full float32, three tensor-core products instead of one; ``tf32`` and ``bf16`` are what they say.

Max-pooling with windows that do not overlap keeps a byte per window, where its maximum was; the first one counts.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def _power_of_two(number: int) -> int:
    return max(16, 1 << (number - 1).bit_length())


@triton.jit
def _dot(a, b, precision: tl.constexpr):
    if precision == "bf16":
        product = tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16))
    else:
        product = tl.dot(a, b, input_precision=precision)
    return product


@triton.jit
def _patch_starts(rows, per_image, across, image, line, pixel, stride: tl.constexpr):
    """Offset of the first pixel of the patch that each output position sees."""
    place = rows % per_image
    return (rows // per_image) * image + (place // across) * stride * line + (place % across) * stride * pixel


@triton.jit
def _in_patch(k, line, kernel_width: tl.constexpr, channels: tl.constexpr):
    """Offset of patch element k = (row, column, channel) from the patch's first pixel."""
    tap = k // channels
    return (tap // kernel_width) * line + (tap % kernel_width) * channels + k % channels


@triton.jit
def _convolve(
    x, w, bias, y, client, image, line, rows_total, per_image, across,
    channels: tl.constexpr, outputs: tl.constexpr, depth: tl.constexpr, kernel_width: tl.constexpr,
    stride: tl.constexpr, precision: tl.constexpr,
    block_rows: tl.constexpr, block_outputs: tl.constexpr, block_depth: tl.constexpr,
):  # fmt: skip
    """y[a, p, o] = bias[a, o] + Σ_k x[a, patch p, k] w[a, k, o]."""
    a = tl.program_id(2).to(tl.int64)
    rows = tl.program_id(0) * block_rows + tl.arange(0, block_rows)
    outs = tl.program_id(1) * block_outputs + tl.arange(0, block_outputs)
    starts = _patch_starts(rows, per_image, across, image, line, channels, stride)
    pixels = x + a * client + starts
    weights = w + a * depth * outputs
    total = tl.zeros((block_rows, block_outputs), tl.float32)
    for first in range(0, depth, block_depth):
        k = first + tl.arange(0, block_depth)
        patch = tl.load(
            pixels[:, None] + _in_patch(k, line, kernel_width, channels)[None, :],
            mask=(rows < rows_total)[:, None] & (k < depth)[None, :],
            other=0.0,
        )
        part = tl.load(
            weights + k[:, None] * outputs + outs[None, :],
            mask=(k < depth)[:, None] & (outs < outputs)[None, :],
            other=0.0,
        )
        total += _dot(patch, part, precision)
    total += tl.load(bias + a * outputs + outs, mask=outs < outputs, other=0.0)[None, :]
    place = y + (a * rows_total + rows)[:, None] * outputs + outs[None, :]
    tl.store(place, total, mask=(rows < rows_total)[:, None] & (outs < outputs)[None, :])


@triton.jit
def _correlate(
    x, g, out, client, image, line, rows_total, per_image, across, split_rows, splits,
    channels: tl.constexpr, outputs: tl.constexpr, depth: tl.constexpr, kernel_width: tl.constexpr,
    stride: tl.constexpr, precision: tl.constexpr,
    block_rows: tl.constexpr, block_outputs: tl.constexpr, block_depth: tl.constexpr,
):  # fmt: skip
    """out[a, s, k, o] = Σ_{p in split s} x[a, patch p, k] g[a, p, o]; row ``depth`` is Σ_p g, the bias's gradient."""
    a, split = (tl.program_id(2) // splits).to(tl.int64), tl.program_id(2) % splits
    k = tl.program_id(0) * block_depth + tl.arange(0, block_depth)
    outs = tl.program_id(1) * block_outputs + tl.arange(0, block_outputs)
    inside = x + a * client + _in_patch(k, line, kernel_width, channels)
    gradients = g + a * rows_total * outputs
    end = tl.minimum((split + 1) * split_rows, rows_total)
    total = tl.zeros((block_outputs, block_depth), tl.float32)
    bias = tl.zeros((block_outputs,), tl.float32)
    for first in range(split * split_rows, end, block_rows):
        rows = first + tl.arange(0, block_rows)
        starts = _patch_starts(rows, per_image, across, image, line, channels, stride)
        patch = tl.load(inside[None, :] + starts[:, None], mask=(k < depth)[None, :] & (rows < end)[:, None], other=0.0)
        part = tl.load(
            gradients + rows[:, None] * outputs + outs[None, :],
            mask=(rows < end)[:, None] & (outs < outputs)[None, :],
            other=0.0,
        )
        total += _dot(tl.trans(part), patch, precision)
        bias += tl.sum(part, 0)
    place = out + (a * splits + split) * (depth + 1) * outputs + outs
    tl.store(place[:, None] + (k * outputs)[None, :], total, mask=(outs < outputs)[:, None] & (k < depth)[None, :])
    if tl.program_id(0) == 0:
        tl.store(place + depth * outputs, bias, mask=outs < outputs)


def convolve(x: Tensor, w: Tensor, bias: Tensor, kernel_width: int, stride: int, precision: str) -> Tensor:
    """(A, B, Ho, Wo, O) from padded images (A, B, H, W, C), weights (A, kh·kw·C, O) and biases (A, O)."""
    clients, batch, height, width, channels = x.shape
    depth, outputs = w.shape[1:]
    kernel_height = depth // (kernel_width * channels)
    down, across = (height - kernel_height) // stride + 1, (width - kernel_width) // stride + 1
    y = x.new_empty(clients, batch, down, across, outputs)
    rows, block = batch * down * across, min(64, _power_of_two(outputs))
    # measured on an H200: few outputs leave little to do per patch, which one warp does without waiting for others
    block_rows, block_depth, warps = (64, 512 // block, 1) if depth > 32 and block <= 32 else (128, 32, 4)
    grid = (triton.cdiv(rows, block_rows), triton.cdiv(outputs, block), clients)
    _convolve[grid](
        x, w, bias, y, x.stride(0), x.stride(1), x.stride(2), rows, down * across, across,
        channels, outputs, depth, kernel_width, stride, precision, block_rows, block, block_depth, num_warps=warps,
    )  # fmt: skip
    return y


def correlate(x: Tensor, g: Tensor, kernel: tuple[int, int], stride: int, precision: str) -> tuple[Tensor, Tensor]:
    """Gradients (A, kh·kw·C, O) and (A, O) for weights and biases, from padded images and the output's gradient."""
    clients, batch, down, across, outputs = g.shape
    channels, rows = x.shape[-1], batch * down * across
    depth, block = kernel[0] * kernel[1] * channels, min(64, _power_of_two(outputs))
    # measured on an H200: so many positions are summed by one program, so many at a time; fewer when there are few
    # clients, which would otherwise leave most of the device idle
    wide = (4096, 32, 8192 // block, 4) if clients > 4 else (256, 32, 2048 // block, 2)
    split, block_rows, block_depth, warps = (1024, 64, 32, 2) if depth <= 32 else wide
    splits = triton.cdiv(rows, split)
    parts = x.new_empty(clients, splits, depth + 1, outputs)
    grid = (triton.cdiv(depth, block_depth), triton.cdiv(outputs, block), clients * splits)
    _correlate[grid](
        x, g, parts, x.stride(0), x.stride(1), x.stride(2), rows, down * across, across, split, splits,
        channels, outputs, depth, kernel[1], stride, precision, block_rows, block, block_depth, num_warps=warps,
    )  # fmt: skip
    both = parts.sum(1)
    return both[:, :depth], both[:, depth]


@triton.jit
def _pool(
    x, y, where, total, across_in, per_image_in, across, per_image, channels, size: tl.constexpr, block: tl.constexpr
):
    """The maximum of each window, NaN if there is one, and where it is."""
    place = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    channel, pixel = place % channels, place // channels
    image, inner = pixel // per_image, pixel % per_image
    corner = image * per_image_in + (inner // across) * size * across_in + (inner % across) * size
    best = tl.load(x + corner * channels + channel, mask=place < total)
    found = tl.zeros((block,), tl.uint8)
    for k in tl.static_range(1, size * size):
        other = corner + (k // size) * across_in + k % size
        value = tl.load(x + other * channels + channel, mask=place < total)
        better = (value > best) | (value != value)  # noqa: PLR0124 - NaN is not itself
        best = tl.where(better, value, best)
        found = tl.where(better, k, found).to(tl.uint8)
    tl.store(y + place, best, mask=place < total)
    tl.store(where + place, found, mask=place < total)


@triton.jit
def _unpool(
    g, where, x, total, across_in, per_image_in, across, per_image, channels, size: tl.constexpr, block: tl.constexpr
):
    """Each window's gradient at the place of its maximum, 0 elsewhere."""
    place = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    channel, pixel = place % channels, place // channels
    image, inner = pixel // per_image_in, pixel % per_image_in
    row, column = inner // across_in, inner % across_in
    window = image * per_image + (row // size) * across + column // size
    inside = (place < total) & (row // size < per_image // across) & (column // size < across)
    found = tl.load(where + window * channels + channel, mask=inside, other=255)
    value = tl.load(g + window * channels + channel, mask=inside, other=0.0)
    mine = (row % size) * size + column % size
    tl.store(x + place, tl.where(found == mine, value, 0.0), mask=place < total)


@triton.jit
def _spread(
    x, y, total, down_in, across_in, per_image, across, channels, top, left, stride: tl.constexpr, block: tl.constexpr
):
    """The images' rows and columns ``stride`` apart, the first at (top, left), and 0 elsewhere."""
    place = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    channel, pixel = place % channels, place // channels
    image, inner = pixel // per_image, pixel % per_image
    row, column = inner // across - top, inner % across - left
    inside = (place < total) & (row >= 0) & (column >= 0) & (row % stride == 0) & (column % stride == 0)
    row, column = row // stride, column // stride
    inside = inside & (row < down_in) & (column < across_in)
    source = (image * down_in + row) * across_in + column
    tl.store(y + place, tl.load(x + source * channels + channel, mask=inside, other=0.0), mask=place < total)


def spread(x: Tensor, size: tuple[int, int], corner: tuple[int, int], stride: int = 1) -> Tensor:
    """Images (..., H, W, C) laid into zeros of height and width ``size``, from ``corner`` on, ``stride`` apart."""
    *front, down, across, channels = x.shape
    y = x.new_empty(*front, *size, channels)
    grid = (triton.cdiv(y.numel(), 1024),)
    _spread[grid](x, y, y.numel(), down, across, size[0] * size[1], size[1], channels, *corner, stride, 1024)
    return y


def pool(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Maxima (..., H/size, W/size, C) of images (..., H, W, C), and the place of each in its window."""
    *front, height, width, channels = x.shape
    down, across = height // size, width // size
    y = x.new_empty(*front, down, across, channels)
    where = torch.empty(y.shape, dtype=torch.uint8, device=x.device)
    grid = (triton.cdiv(y.numel(), 1024),)
    _pool[grid](x, y, where, y.numel(), width, height * width, across, down * across, channels, size, 1024)
    return y, where


def unpool(g: Tensor, where: Tensor, shape: tuple[int, int], size: int) -> Tensor:
    """The gradient for images of height and width ``shape``."""
    *front, down, across, channels = g.shape
    x = g.new_empty(*front, *shape, channels)
    grid = (triton.cdiv(x.numel(), 1024),)
    _unpool[grid](g, where, x, x.numel(), shape[1], shape[0] * shape[1], across, down * across, channels, size, 1024)
    return x
