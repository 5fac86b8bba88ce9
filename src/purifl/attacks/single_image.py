"""One chosen test input is to be classified as one chosen wrong label."""

from __future__ import annotations

import numpy as np
import torch

from purifl.attacks.base import Attack, Poison, attacks
from purifl.data import DataSet, Samples


@attacks.register("single-image")
class SingleImage(Attack):
    """Malicious clients train on one test image, repeated, with a wrong label; both chosen by the seed.

    Attack accuracy is the share of benign models that fall for it, so average over seeds.
    """

    reference = "Bhagoji et al.: Analyzing Federated Learning through an Adversarial Lens, ICML 2019"

    def aim(self, data: DataSet, rng: np.random.Generator) -> Poison:
        """A random test input and a random label other than its own."""
        chosen = int(rng.integers(len(data.test.y)))
        x, truth = data.test.x[chosen : chosen + 1], int(data.test.y[chosen])
        label = int(rng.choice([k for k in range(data.classes) if k != truth]))

        def corrupt(samples: Samples) -> Samples:
            return Samples(x.to(samples.x.device).expand_as(samples.x), torch.full_like(samples.y, label))

        return Poison(corrupt, Samples(x, torch.tensor([label])), torch.tensor([False]))
