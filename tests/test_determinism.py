"""What a GPU would refuse to compute the same way each time is not computed, as far as that can be seen without one."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from purifl import Experiment, run
from purifl.attacks import attacks
from purifl.defenses import defenses
from purifl.detection import detectors
from tiny import TINY

# of those listed with torch.use_deterministic_algorithms, as far as a rule over clients could want them
REFUSED = {
    "aten::median.dim", "aten::nanmedian.dim", "aten::kthvalue", "aten::histc", "aten::put_", "aten::mode",
    "aten::scatter_reduce.two", "aten::scatter_reduce_.two", "aten::index_reduce_",
}  # fmt: skip


class Refusing(TorchDispatchMode):
    """Raises as torch does with CUDA tensors where only the same bits each time will do."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.name() in REFUSED or (func.name() == "aten::cumsum" and args[0].is_floating_point()):
            raise RuntimeError(f"{func.name()} is not deterministic on CUDA")
        return func(*args, **kwargs or {})


def test_that_it_is_noticed() -> None:
    with Refusing(), pytest.raises(RuntimeError, match="nanmedian"):
        torch.rand(3, 3).nanmedian(1)


@pytest.mark.parametrize("defense", list(defenses))
def test_no_defence_needs_what_a_gpu_refuses(defense: str) -> None:
    settings = TINY | {"clients": 7, "topology": "complete", "rounds": 2, "engine": "loop", "defense": defense}
    with Refusing():
        run(Experiment.parse(settings))


@pytest.mark.parametrize("attack", list(attacks))
def test_no_attack_does(attack: str) -> None:
    aim = {} if attack == "none" else {"malicious_clients": [1]}
    settings = TINY | {"clients": 7, "rounds": 2, "engine": "loop", "attack": {"name": attack} | aim}
    with Refusing():
        run(Experiment.parse(settings))


@pytest.mark.parametrize("detector", list(detectors))
def test_no_detector_does(detector: str) -> None:
    settings = TINY | {"clients": 7, "topology": "complete", "rounds": 2, "engine": "loop", "detector": detector}
    with Refusing():
        run(Experiment.parse(settings))
