import pytest
from federations import accuracies, federation, models, node, play, run_all


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """The final models and accuracies of a federation that nothing happens to."""
    network = federation(tmp_path_factory.mktemp("undisturbed"))
    nodes = [node(network, peer) for peer in network.peers]
    play(run_all(nodes))
    return models(network), accuracies(nodes)
