"""Both ends of an edge come to count the same rounds, whatever was lost."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from purifl.peer.edges import Edge, edges_from, edges_state
from purifl.peer.messages import WINDOW


def term(value):
    return torch.tensor([float(value)])


def test_a_round_that_only_one_end_counted_is_taken_back():
    here, there = Edge(), Edge()
    for round_ in (0, 1, 2):
        here.count(round_, term(round_))
    there.count(0, term(0))
    there.count(2, term(2))
    forget, retracted = here.reconcile(there.since, tuple(there.counted), 3)
    assert not forget
    assert [float(x) for x in retracted] == [1]
    assert here.counted == there.counted
    assert here.reconcile(there.since, tuple(there.counted), 3) == (False, [])


def test_what_cannot_be_told_any_more_begins_anew():
    here = Edge()
    here.count(0, term(0))
    assert here.reconcile(0, tuple(range(3, 3 + WINDOW)), 20).forget
    assert here.since == 20
    assert here.pending == {}


def test_a_record_begun_anew_at_one_end_is_at_the_other():
    here = Edge()
    here.count(0, term(0))
    assert here.reconcile(4, (), 4).forget
    assert (here.since, here.counted, here.pending) == (4, [], {})
    assert not here.reconcile(4, (), 5).forget


def test_edges_are_stored():
    edges = {3: Edge(2, [2, 4], {4: term(1)}), 7: Edge()}
    assert edges_from([3, 7], edges_state(edges), torch.device("cpu")) == edges
    elsewhere = edges_from([3, 7], edges_state(edges), torch.device("meta"))
    assert elsewhere[3].pending[4].is_meta


class End:
    """One end, with the sum of its record: opposite to the other's once both agree."""

    def __init__(self, sign):
        self.edge, self.sign, self.sum = Edge(), sign, 0.0

    def hear(self, other, now):
        forget, retracted = self.edge.reconcile(other[0], other[1], now)
        self.sum = 0.0 if forget else self.sum - sum(float(x) for x in retracted)

    def count(self, round_):
        self.edge.count(round_, term(self.sign * 2.0**round_))
        self.sum += self.sign * 2.0**round_

    def say(self):
        return self.edge.since, tuple(self.edge.counted)


@given(st.lists(st.tuples(*[st.booleans()] * 4, st.sampled_from([None, 0, 1])), max_size=20))
def test_records_cancel_after_any_storm(rounds):
    """Each round: which messages and which receipts arrive, and who has to begin anew."""
    ends = End(1), End(-1)
    for now, (*arrived, anew) in enumerate(rounds):
        if anew is not None:
            ends[anew].edge.restart(now)
            ends[anew].sum = 0.0
        said = [end.say() for end in ends]
        for k in (0, 1):
            heard, receipt = arrived[k], arrived[1 - k] and arrived[2 + k]
            if heard:
                ends[k].hear(said[1 - k], now)
            if heard and receipt:
                ends[k].count(now)
    for now in (len(rounds), len(rounds) + 1):
        said = [end.say() for end in ends]
        for k in (0, 1):
            ends[k].hear(said[1 - k], now)
    assert ends[0].sum == -ends[1].sum
    assert ends[0].edge.counted == ends[1].edge.counted
