"""The score against the formula, edge by edge."""

import pytest

from purifl.detection.similarity import Similarity
from watching import everyone, setting


def test_similarity_is_the_positive_cosine_and_one_for_oneself():
    hood, gamma, edges = setting()
    gamma[2] = 0
    scores = Similarity().scores({}, hood, gamma, everyone(hood), gamma)
    for score, (i, j) in zip(scores.tolist(), edges, strict=True):
        both = gamma[i].norm() * gamma[j].norm()
        expected = 1 if i == j else 0 if both == 0 else max(0, (gamma[i] @ gamma[j] / both).item())
        assert score == pytest.approx(expected)
