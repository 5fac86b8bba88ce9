"""Gradients of many clients' mini-batches in one call, recorded as a CUDA graph where there is CUDA."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from purifl.data import Samples
from purifl.engines.base import Work

_CLOSE = 1e-2  # relative; what differs by more than the rounding of any precision differs in kind
_KEPT = 2  # recordings kept for later runs; each holds the memory of a step


class NotStackableError(Exception):
    """A model, loss or rule that cannot be computed for many clients in one call; says why."""


Recording: TypeAlias = tuple[torch.cuda.CUDAGraph, list[Tensor]]


class StackedGradients:
    """∇L of up to ``capacity`` clients' mini-batches of up to ``width`` samples each.

    Mini-batches and parameters are put into buffers that stay where they are, which is what a recorded graph reads.

    Args:
        work: Whose loss and device to use, and one of whose clients' data to take shapes from.
        model: Only its structure is used, and what it has besides trainable parameters.
        capacity: Clients at once.
        width: B, samples in the largest mini-batch.
    """

    def __init__(self, work: Work, model: nn.Module, capacity: int, width: int) -> None:
        self._model, self._work = model, replace(work, clients=())  # it outlives the run, whose data must not
        like, device = work.clients[0].data, work.device
        self._x = torch.zeros(capacity, width, *like.x.shape[1:], dtype=like.x.dtype, device=device)
        self._y = torch.zeros(capacity, width, *like.y.shape[1:], dtype=like.y.dtype, device=device)
        trained = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
        self.params = {name: p.expand(capacity, *p.shape).clone() for name, p in trained.items()}
        self._weights = next(iter(trained.values())).new_zeros(capacity, width)
        self._fixed = {
            name: tensor.detach().clone()
            for name, tensor in (*model.named_parameters(), *model.named_buffers())
            if name not in trained
        }
        self._recordings: dict[tuple[str, int, int], Recording] = {}
        self._tested: Tensor | None = None
        self._memory = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        self._try(_some(work))

    def _try(self, some: Samples) -> None:
        """See, before anybody relies on it, whether model and loss can be stacked at all."""
        try:
            self(1, 1)
            self._model.train()
            params = {name: p[0] for name, p in self.params.items()}
            together = self._plain_outputs(params, some.x)
            alone = torch.cat([self._plain_outputs(params, x[None]) for x in some.x])
            mean, whole = self._losses(together, some.y).mean(), self._work.loss(together, some.y)
        except (RuntimeError, ValueError, NotImplementedError) as error:
            raise NotStackableError(str(error).strip().split("\n")[0]) from error
        if not torch.allclose(together, alone, rtol=_CLOSE, atol=_CLOSE * float(alone.abs().max())):
            raise NotStackableError("the model's answer to a sample depends on the others in its mini-batch")
        if not torch.allclose(mean, whole, rtol=_CLOSE):
            raise NotStackableError("the loss of a mini-batch is not the mean of its samples' losses")

    def load(self, theta: Tensor, model: nn.Module) -> list[Tensor]:
        """Put in the parameters of len(theta) clients, and return them as views, to be walked on."""
        if self._fixed:
            own = dict((*model.named_parameters(), *model.named_buffers()))
            for name, tensor in self._fixed.items():
                tensor.copy_(own[name])
        sizes = [p[0].numel() for p in self.params.values()]
        views = [p[: len(theta)] for p in self.params.values()]
        parts = torch.split(theta, sizes, 1)
        torch._foreach_copy_(views, [part.view_as(view) for view, part in zip(views, parts, strict=True)])
        return views

    def feed(self, pool: Samples, index: Tensor, weights: Tensor) -> None:
        """Put in the mini-batches ``index`` (A, B) of ``pool``, and each sample's weight in the loss."""
        active, width = index.shape
        for buffer, values in ((self._x, pool.x), (self._y, pool.y)):
            place = buffer[:active, :width]
            if place.is_contiguous():  # straight there, without a temporary
                torch.index_select(values, 0, index.reshape(-1), out=place.flatten(0, 1))
            else:
                place.copy_(values[index])
        self._weights[:active, :width] = weights

    def __call__(self, active: int, width: int) -> list[Tensor]:
        """(active, ...) the gradient for each parameter, of mini-batches of ``width``; valid until the next call."""
        return self._replayed("gradients", active, width)

    def outputs(self, count: int, x: Tensor) -> Tensor:
        """(count, len(x), ...) what the first ``count`` clients' models say about the same samples."""
        if self._tested is None or len(self._tested) < len(x):
            self._tested = torch.empty_like(x)
            self._recordings = {key: kept for key, kept in self._recordings.items() if key[0] == "gradients"}
        self._tested[: len(x)] = x
        return self._replayed("outputs", count, len(x))[0].clone()

    def _replayed(self, what: str, clients: int, samples: int) -> list[Tensor]:
        """What a function computes from the buffers, by its recording where there is CUDA."""
        compute = partial(self._compute if what == "gradients" else self._answer, clients, samples)
        if self._memory is None:
            return compute()
        key = (what, clients, samples)
        if key not in self._recordings:
            self._recordings[key] = self._record(compute)
        graph, results = self._recordings[key]
        graph.replay()
        return results

    def _record(self, compute: Callable[[], list[Tensor]]) -> Recording:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            compute()  # compiles kernels and sets up libraries, which a recording must not
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory):
            results = compute()
        return graph, results

    def _compute(self, active: int, width: int) -> list[Tensor]:
        params = {name: p[:active] for name, p in self.params.items()}
        batch = (self._x[:active, :width], self._y[:active, :width], self._weights[:active, :width])
        self._model.train()
        found: dict[str, Tensor] = vmap(grad(self._mean_loss))(params, *batch)
        return [g.contiguous() for g in found.values()]

    def _mean_loss(self, params: dict[str, Tensor], x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """Σ_k weight_k L(x_k, y_k) of one client."""
        outputs = self._outputs(params, x)
        total: Tensor = (self._losses(outputs, y) * weights).sum()
        return total

    def _losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """L of each sample. Cross-entropy is written out: to pick entries by index, a deterministic GPU sorts first."""
        if self._work.loss is cross_entropy and y.dim() == 1:
            chosen = y[:, None] == torch.arange(outputs.shape[-1], device=y.device)
            return -torch.where(chosen, outputs.log_softmax(-1), 0).sum(-1)
        each: Tensor = vmap(lambda output, label: self._work.loss(output[None], label[None]))(outputs, y)
        return each

    def _outputs(self, params: dict[str, Tensor], x: Tensor) -> Tensor:
        with self._layers():
            return self._plain_outputs(params, x)

    def _plain_outputs(self, params: dict[str, Tensor], x: Tensor) -> Tensor:
        with self._work.casting():
            outputs: Tensor = functional_call(self._model, params | self._fixed, (x,))
        return outputs.float() if outputs.dtype == torch.bfloat16 else outputs

    def _answer(self, count: int, samples: int) -> list[Tensor]:
        params = {name: p[:count] for name, p in self.params.items()}
        assert self._tested is not None
        x = self._tested[:samples]
        self._model.eval()
        with torch.no_grad():
            return [vmap(lambda params: self._outputs(params, x))(params)]

    def _layers(self) -> AbstractContextManager[object]:
        if self._memory is None or find_spec("triton") is None:
            return nullcontext()
        from purifl.engines.layers import StackedLayers  # noqa: PLC0415 - Triton exists only where CUDA does

        return StackedLayers("tf32x3" if self._work.precision == "float32" else self._work.precision)


def _some(work: Work) -> Samples:
    """A few samples, of different labels as far as the first client has such."""
    data = work.clients[0].data
    labels = data.y.tolist()
    first = {str(label): k for k, label in reversed(list(enumerate(labels)))}
    return data.at(torch.tensor(sorted(first.values())[:8], device=data.y.device))


def check_labels(work: Work) -> None:
    """Refuse labels that cross-entropy treats in its own way, or not at all: the loop does that."""
    if work.loss is not cross_entropy:
        return
    for client in work.clients:
        for data in (client.data, client.poisoned):
            if data is not None and data.y.dim() == 1 and (data.y.dtype != torch.int64 or int(data.y.min()) < 0):
                raise NotStackableError(f"client {client.id} has labels that are not int64 from 0 on")


_recordings: OrderedDict[Hashable, StackedGradients] = OrderedDict()


def recorded(work: Work, model: nn.Module, capacity: int, width: int) -> StackedGradients:
    """Gradients for this work: those of an earlier run in this process with the same model, where there was one.

    Recording takes longer than many runs' rounds. Runs share it if their models come from equal factories that
    say so by a ``key``; any other factory's models may differ in more than their parameters.
    """
    key: Hashable = getattr(work.factory, "key", None)
    if key is None:
        return StackedGradients(work, model, capacity, width)
    like = work.clients[0].data
    key = (key, work.loss, work.device, like.x.shape[1:], like.x.dtype, work.precision, capacity, width)
    if key not in _recordings:
        _recordings[key] = StackedGradients(work, model, capacity, width)
    _recordings.move_to_end(key)
    while len(_recordings) > _KEPT:
        _recordings.popitem(last=False)
    return _recordings[key]
