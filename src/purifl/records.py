"""Recording variables: what a client has aggregated from each neighbour, ever since the first round.

One vector per edge, so that everything a neighbour contributed can be taken back at once. The functions
change the (E, d) record in place, a few edges at a time, without an (E, d) temporary.
"""

from __future__ import annotations

from torch import Tensor

from purifl.neighbourhood import Neighbourhood


def add_gradients(beta: Tensor, hood: Neighbourhood, weights: Tensor, gamma: Tensor) -> None:
    """β_ij += w_ij γ_j, the paper's recording variable."""
    for edges in hood.chunks(gamma.shape[1]):
        beta[edges].addcmul_(weights[edges, None], gamma[hood.cols[edges]])


def add_differences(records: Tensor, hood: Neighbourhood, weights: Tensor, gamma: Tensor) -> None:
    """d_ij += w_ij (γ_j − γ_i), the difference record.

    With symmetric weights d_ij = −d_ji, so what two honest clients recorded of each other cancels in the
    sum over both, whenever and in whatever order they cut others off.
    """
    for edges in hood.chunks(gamma.shape[1]):
        records[edges].addcmul_(weights[edges, None], hood.differences(gamma, edges))
