"""The equations of ``persistence`` written down once more, slowly and edge by edge, from docs/method.md."""

import math

import networkx as nx
import numpy as np


def discord_by_hand(theirs, ours, kept):
    """Of messages (rounds, d) in a row of few."""

    def too_long(theirs, ours):
        cosine = (theirs * ours).sum() / np.linalg.norm(theirs) / np.linalg.norm(ours)
        multiple = max(1, 2 + 10 * cosine) if kept else max(1e-100, 10 * cosine)
        return (np.linalg.norm(theirs) / np.linalg.norm(ours) / multiple) ** 2 * (1 - max(0, cosine) ** 2)

    lengths = np.linalg.norm(theirs[0]), np.linalg.norm(ours[0])
    cosine = theirs[0] @ ours[0] / lengths[0] / lengths[1]
    large = lengths[0] > 4 * lengths[1] and cosine >= 0.1
    if len(ours) < 3 or (kept and cosine < 0.85 and (large or len(ours) > 8)):
        return 0
    fading = math.sqrt(1 if kept and cosine < 0.85 else 0.75) ** np.arange(len(ours))[::-1, None]
    return min(too_long(fading * theirs, fading * ours), too_long(theirs[-1], ours[-1]))


def median(values, parts=2):
    values = sorted(values)
    return values[(len(values) - 1) // parts] if values else math.nan


def agreement_by_hand(first, j, around):
    """Of first messages (n, d)."""
    cosines = sorted(
        first[j] @ first[k] / np.linalg.norm(first[j]) / np.linalg.norm(first[k]) for k in around if k != j
    )
    return cosines[len(cosines) // 2]


def alike_by_hand(first, i, j, around):
    """alike_ij, and what j is, large, odd or neither, by first messages (n, d)."""
    length, agreement = np.linalg.norm(first, axis=1), agreement_by_hand(first, j, around)
    usual = median(length[k] for k in around)
    long = length[j] > 4 * usual
    if agreement < -0.1 or (long and agreement < 0.1):
        return 1, "odd"
    return (0, "large") if long else (min(1, (usual + length[i]) / (length[j] + length[i])), "")


def apart_by_hand(distance, first, i, j, around, usual):
    """By distances and first messages (n, d), compared with those ``usual``; of who is odd, for their size."""
    alike, kind = alike_by_hand(first, i, j, around)
    for_size = median(distance[i, k] * alike_by_hand(first, i, k, around)[0] for k in usual)
    compared = for_size if kind == "odd" and for_size > 0 else median(distance[i, k] for k in usual)
    return alike * distance[i, j] / compared


def akin_by_hand(one, other):
    """By first messages (d,)."""
    shorter, longer = sorted(np.linalg.norm(each) for each in (one, other))
    return one @ other >= 0.85 * shorter * longer and longer <= 4 * shorter


def beyond_kin_by_hand(messages, gradient, j, i, heard, neighbours, kept):
    """What j claims beyond its kin to i, of messages (rounds, n, d), with those ``heard`` over level edges."""
    alike = nx.Graph([(k, other) for k in heard for other in heard if akin_by_hand(messages[0, k], messages[0, other])])
    group = nx.node_connected_component(alike, j) if j in alike else ()
    difference = (messages - messages[:, i : i + 1]).sum(0)
    claims = {k: np.linalg.norm(difference[k] + gradient) / np.linalg.norm(messages[0, k]) for k in group}
    usual = sorted(claims[k] for k in group if kept[i, k])
    if len(group) <= 4 or len(usual) < 3 or (i not in group and 2 * len(group) <= neighbours):
        return 0
    return claims[j] / max(usual[len(usual) // 2], claims.get(i, 0))


def persistence_by_hand(hood, edges, messages, kept, own, sharpness, trusted):
    """The class's equations, edge by edge, for clients with the gradients ``own`` (rounds, n, d)."""
    size, lengths, own_lengths = np.bincount(hood.rows), np.linalg.norm(messages, axis=2), np.linalg.norm(own, axis=2)
    distance = {(i, j): np.linalg.norm((messages[:, j] - messages[:, i]).sum(0)) for i, j in edges}

    def suspicion(i, j):
        around = [k for r, k in edges if r == i]
        push = push_in(len(messages), i, j, around)
        push = min(push, 1) if wave(i, j, around) else push
        heard = [k for k in around if k != i and kept[i, k]]
        usual = [k for k in heard if k in trusted] or heard
        if size[i] <= 4 or not usual:
            discord = discord_by_hand(messages[:, j], messages[:, i], kept[i, j]) if size[i] <= 4 else 0
            return max(push, min(1, 4 * push) * discord)
        alike, _ = alike_by_hand(messages[0], i, j, around)
        apart = apart_by_hand(distance, messages[0], i, j, around, usual)
        heard = [k for k in around if level(i, k)]
        apart = max(apart, beyond_kin_by_hand(messages, own[-1, i], j, i, heard, size[i] - 1, kept))
        lasting = [persistence(i, k, around) for k in usual]
        ratio = persistence(i, j, around) * median(lasting, parts=4) / median(lasting) ** 2
        unusual = min(2, max(1, ratio)) if kept[i, j] and alike else 1
        return max(push, unusual * min(1, push), apart * min(1, (2 if slow(i, j) else 4) * push))

    def slow(i, j):
        return min(size[i], size[j]) <= 4 or min(size[i], size[j]) < len(size)

    def level(i, j):
        return size[i] == size[j] > 4

    def mixed(i, j, around):
        return sum(kept[i, k] for k in around) / size[i] if kept[i, j] else 1

    def push_in(rounds, i, j, around):
        openness = (min(size[i], size[j]) - 1) / max(size[i], size[j])
        mean = np.mean(lengths[:rounds] ** 4, axis=0) ** 0.25
        ours = mean[i] if size[i] > 2 else min(mean[i], max(lengths[0, i], mean[j]))
        large = size[i] > 4 and alike_by_hand(messages[0], i, j, around)[1] == "large"
        theirs, first, gradient = mean[j], lengths[0], own_lengths[rounds - 1, i]
        kin = akin_by_hand(messages[0, i], messages[0, j]) and rounds <= 8
        if level(i, j) and kin:
            theirs = min(theirs, first[j] / first[i] * max(gradient, lengths[rounds - 1, i]))
        if level(i, j) and (kin or first[i] > 4 * first[j]):
            ours = min(ours, theirs)
        ours = max(ours, min(gradient, first[i]), large * first[j] / rounds**0.25)
        more = mixed(i, j, around) * beyond_less(rounds, i, j)
        return openness * more**3 / squares(rounds, i, j) / (ours + theirs)

    def beyond_less(rounds, i, j):
        theirs, ours = messages[:rounds, j].sum(0), messages[:rounds, i].sum(0)
        same = theirs @ ours > np.linalg.norm(theirs) * np.linalg.norm(ours) / 2
        catches_up = rounds * (1 - theirs @ ours / (ours @ ours)) <= 2 * max(size[i], size[j])
        behind = slow(i, j) and kept[i, j] and same and catches_up
        return np.linalg.norm(theirs - (min(1, theirs @ ours / (ours @ ours)) if behind else 1) * ours)

    def wave(i, j, around):
        growth = (lengths[:, i].max() + lengths[:, j].max()) / (lengths[0, i] + lengths[0, j])
        lasting = (mixed(i, j, around) * beyond_less(len(messages), i, j)) ** 2 / squares(len(messages), i, j)
        dots, bounds = np.sum(messages[:, j] * own[:, i], axis=1), lengths[:, j] * own_lengths[:, i]
        pushing = [t for t in range(len(messages)) if push_in(t + 1, i, j, around) > 1]
        cosine, average = dots[-1] / bounds[-1], dots[pushing].sum() / max(bounds[pushing].sum(), 1e-9)
        along = average > 0.1 and (cosine > 0.1 or average > 0.3) and own_lengths[-1, i] <= 3 * lengths[0, i]
        return slow(i, j) and kept[i, j] and along and lasting <= 1.5 * min(growth, 3) ** 1.5

    def squares(rounds, i, j):
        return ((messages[:rounds, j] - messages[:rounds, i]) ** 2).sum()

    def persistence(i, j, around):
        return (mixed(i, j, around) * distance[i, j]) ** 2 / squares(len(messages), i, j)

    found = {(i, j): 0 if i == j or j in trusted else suspicion(i, j) for i, j in edges}
    farthest = {i: max([distance[e] for e in edges if e[0] == i and kept[e] and found[e] > 1] + [0]) for i, _ in edges}
    return [
        1
        if i == j or (kept[i, j] and distance[i, j] < farthest[i] / 2)
        else math.exp(-sharpness * max(0, found[i, j] - 1))
        for i, j in edges
    ]
