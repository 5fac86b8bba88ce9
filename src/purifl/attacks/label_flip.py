"""Label flipping: malicious clients train on wrong labels."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from purifl.attacks.base import Attack, Poison, attacks
from purifl.data import DataSet, Samples


@attacks.register("label-flip")
class LabelFlip(Attack):
    """Malicious clients train on their own data with every label y turned into classes − 1 − y.

    Untargeted: no input is wanted to get a label of its own, so there is no attack accuracy.
    """

    reference: ClassVar[str] = (
        "Fang, Cao, Jia, Gong: Local Model Poisoning Attacks to Byzantine-Robust Federated Learning, "
        "USENIX Security 2020, its label flipping attack"
    )

    def aim(self, data: DataSet, rng: np.random.Generator) -> Poison:
        """The flipped labels."""

        def corrupt(samples: Samples) -> Samples:
            return Samples(samples.x, data.classes - 1 - samples.y)

        return Poison(corrupt)
