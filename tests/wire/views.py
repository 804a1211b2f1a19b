"""What observers make of a run: one row of numbers for every client and round.

Noise is so large in these runs that contents may be used without restraint: by themselves, noise
and noise with a gradient under it can hardly be told apart. What tells them apart is a leak.
"""

import itertools
import zlib
from collections import Counter
from dataclasses import dataclass

import numpy as np

from coinflower.learning.noise import lattice_cell
from coinflower.masking.masks import lifted, numbers_from_bytes
from coinflower.masking.tickets import Occasion, split_tickets
from coinflower.protocol import messages
from tests.wire.observed import NOISE_MULTIPLIER

# So many coordinates are looked up among all other messages.
_LOOKED_UP = 32


@dataclass(frozen=True, kw_only=True)
class View:
    """Rows of numbers, and for each its round and the coin that it should not tell."""

    rows: np.ndarray
    rounds: np.ndarray
    coins: np.ndarray

    def __len__(self):
        return len(self.rows)


def network_view(seen, kind="honest"):
    """Return what is seen on the lines of all clients of a kind: sizes and times of segments.

    The observer is told when every round began. A round ends with the next.
    """
    rows = {}
    for round_, began, ended in _rounds(seen):
        passed = [
            [one for one in segments if began <= one.at < ended] for segments in seen.segments
        ]
        uploads = [_largest(segments, up=True) for segments in passed]
        for client, segments in enumerate(passed):
            earlier = sum(one.at < uploads[client].at for one in uploads if one and uploads[client])
            rows[client, round_] = [client, earlier, *_line(segments, began, ended)]
    return _view(seen, rows, kind)


def _rounds(seen):
    """Return every round but the last, when it began and when the next one did."""
    starts = list(seen.rounds_asked().items())
    return [(round_, began, ended) for (round_, began), (_, ended) in itertools.pairwise(starts)]


def _line(segments, began, ended):
    up, down = ([one for one in segments if one.up is way] for way in (True, False))
    sent, got = _largest(segments, up=True), _largest(segments, up=False)
    times = [one.at for one in segments]
    row = [ended - began, max(np.diff([began, *times, ended]))]
    # Between model and sum: all of it, and the longest silence in it.
    work = [at for at in times if sent and got and got.at <= at <= sent.at] or [0.0]
    row += [work[-1] - work[0], max(np.diff(work), default=0.0)]
    row += [(one.at - began) if one else -1.0 for one in (sent, got)]
    for way in (up, down):
        largest = sorted((one.size for one in way), reverse=True)[:6]
        row += [len(way), sum(one.size for one in way), *largest, *[0] * (6 - len(largest))]
    return row


def _largest(segments, *, up):
    return max((one for one in segments if one.up is up), key=lambda one: one.size, default=None)


def server_view(seen, kind="honest"):
    """Return what the server has of all clients of a kind: heads, contents, and when they came.

    Every charged round has a row; one without an answer says so.
    """
    sums = {(seen.nodes.index(one.node), one.question[messages.ROUND]): one for one in seen.sums()}
    vectors = {key: _vector(seen, one) for key, one in sums.items()}
    opened = _opened(seen)
    common = [Counter(vector[place] for vector in vectors.values()) for place in range(_LOOKED_UP)]
    salts = Counter(one.answer[messages.SALT] for one in sums.values())
    rows = {}
    for round_, began, ended in _rounds(seen):
        arrivals = [one.answered_at for (_, at), one in sums.items() if at == round_]
        for client, node in enumerate(seen.nodes):
            one = sums.get((client, round_))
            row = [client, one is not None, *_visits(seen, node, began, ended, one)]
            if one is not None:
                vector = vectors[client, round_]
                order = sum(at < one.answered_at for at in arrivals)
                twins = np.mean([common[place][vector[place]] for place in range(_LOOKED_UP)])
                salt = one.answer[messages.SALT]
                row += [order, twins, salts[salt], np.mean(list(salt)), len(set(salt))]
                echo = one.answer.get(messages.ECHO, b"\0")
                row += [np.mean(list(echo)), len(set(echo))]
                row += [*_head(one), *_content(vector), *_bytes(one.answer.get(messages.TICKET))]
                row += opened.get(round_, [])
            rows[client, round_] = row
    width = max(map(len, rows.values()))
    filled = {key: row + [-1.0] * (width - len(row)) for key, row in rows.items()}
    return _view(seen, filled, kind)


def _vector(seen, one):
    """Return the numbers of an answer; under a mask these are whole."""
    content = one.answer[messages.SUM]
    if not seen.mode.masks_sums:
        return np.frombuffer(content, "<f4")
    bits = seen.terms.ring_bits
    return lifted(numbers_from_bytes(content, 8 * len(content) // bits, bits)).astype(np.float32)


def _opened(seen):
    """Return, by round, figures of the sum that a notary opened, which all clients have a part in.

    A server has it from the masked numbers and the sum of their masks.
    """
    found = {}
    bits = seen.terms.ring_bits
    for round_, one in seen.openings().items():
        numbers = [
            numbers_from_bytes(other.answer[messages.SUM], one.question[messages.LENGTH], bits)
            for other in seen.sums()
            if other.question[messages.ROUND] == round_
            and other.answer[messages.TICKET] in one.question[messages.TICKETS]
        ]
        masks = numbers_from_bytes(one.answer[messages.MASKS], len(numbers[0]), bits)
        total = lifted(np.sum(numbers, axis=0, dtype=masks.dtype) - masks)
        found[round_] = [np.mean(total), np.std(total), np.max(np.abs(total))]
    return found


def notary_view(seen, kind="honest"):
    """Return what a notary has of all clients of a kind: their tickets, and when it is asked.

    It knows whose they are, and the seeds; it has no numbers that they mask, and their order is
    that of the owners' names. How long a round took it sees from the time between its last answer
    and the next question.
    """
    rows = {}
    seeds = Counter()
    answered_at = None
    for round_, one in seen.openings().items():
        occasion = Occasion.of(seen.terms, round_)
        tickets = split_tickets(one.question[messages.TICKETS], occasion, len(seen.owners))
        times = [one.asked_at - (answered_at or one.asked_at), one.fetched_at - one.asked_at]
        answered_at = one.answered_at
        for place, ticket in enumerate(tickets):
            client = seen.owners.index(ticket.owner)
            seed = ticket.seed(occasion, seen.notary)
            seeds[seed] += 1
            row = [client, place, len(tickets), *times, seeds[seed]]
            for part in (ticket.token, ticket.seals[0], ticket.signature, seed):
                row += _bytes(part)
            rows[client, round_] = row
    return _view(seen, rows, kind)


def _bytes(content):
    if content is None:
        return [0, 0.0, 0, 0]
    return [len(content), np.mean(list(content)), len(set(content)), content.count(0)]


def co_client_view(seen, watcher="curious"):
    """Return what one client sees of every other, from its own questions and its own line.

    It has a row for each round that it is sent the model of: when that and its questions before and
    after were made and came, which these were, and all that passed on its line between them.
    """
    own = seen.kinds.index(watcher)
    questions = sorted(
        (one for one in seen.exchanges if one.node == seen.nodes[own]), key=lambda one: one.sent_at
    )
    rows = {}
    for before, one, after in zip(questions, questions[1:], questions[2:], strict=False):
        if one.kind != f"train.{messages.GRADIENT}":
            continue
        row = []
        for earlier, later in ((before, one), (one, after)):
            row += [later.sent_at - earlier.sent_at, later.fetched_at - earlier.fetched_at]
            row += [later.question.get(messages.ROUND, 0) - earlier.question.get(messages.ROUND, 0)]
            row += [earlier.kind == one.kind, later.kind == one.kind]
        row += [one.fetched_at - one.sent_at, after.fetched_at - after.sent_at]
        passed = [
            segment
            for segment in seen.segments[own]
            if one.fetched_at <= segment.at < after.fetched_at
        ]
        row += [*_line(passed, one.fetched_at, after.fetched_at), *_delays(passed)]
        for client in set(range(len(seen.nodes))) - {own}:
            rows[client, one.question[messages.ROUND]] = [client, *row]
    return _view(seen, rows)


def _delays(segments):
    """Return how long the server took to answer: a busy one takes longer."""
    delays = [
        later.at - earlier.at
        for earlier, later in itertools.pairwise(segments)
        if earlier.up and not later.up
    ] or [0.0]
    return [len(delays), np.mean(delays), np.median(delays), max(delays)]


def _visits(seen, node, began, ended, answer):
    """Return how often a node came by in a round, and when it did so after its answer."""
    row = []
    for times in (visits.get(node, []) for visits in seen.visits.values()):
        row.append(sum(began <= at < ended for at in times))
        since = answer.stored_at if answer else began
        row.append(min((at - since for at in times if at > since), default=-1.0))
    return row


def _head(one):
    times = [one.asked_at, one.fetched_at, one.answered_at, one.stored_at]
    texts = [str(value) for value in one.metadata.values() if not isinstance(value, float)]
    return [
        *np.diff(times),
        one.metadata["_created_at"] - one.fetched_at,
        one.answered_at - one.metadata["_created_at"],
        one.metadata["_ttl"],
        sum(map(len, texts)),
        len(one.sizes),
        *sorted(one.sizes)[-3:],
        one.wanted,
        *one.traffic,
        one.runtime,
        zlib.crc32(repr([(key, type(value)) for key, value in one.answer.items()]).encode()),
        sum(len(value) for value in one.answer.values() if isinstance(value, bytes)),
    ]


def _content(vector):
    bits = vector.view("<u4") & 0x7FFFFF
    steps = vector.astype(np.float64) / lattice_cell(NOISE_MULTIPLIER)
    low = bits & -bits.astype(np.int64)
    with np.errstate(divide="ignore"):
        trailing = np.where(low > 0, np.log2(low), 23)
    return [
        np.sum(vector == 0),
        np.sum(~np.isfinite(vector)),
        np.mean(bits & 1),
        np.mean(trailing),
        np.mean(steps == np.round(steps)),
        len(np.unique(vector)),
        len(zlib.compress(vector.tobytes(), 1)),
        np.mean(vector),
        np.std(vector),
        np.max(np.abs(vector)),
        np.mean((vector / np.std(vector)) ** 4),
    ]


def _view(seen, rows, kind=None):
    kept = [
        (client, round_)
        for client, round_ in sorted(rows)
        # On a busy machine a client may miss a round, and then flips no coin.
        if kind in (None, seen.kinds[client]) and round_ in seen.coins[client]
    ]
    return View(
        rows=np.array([rows[key] for key in kept], dtype=np.float64),
        rounds=np.array([round_ for _, round_ in kept]),
        coins=np.array([seen.coins[client][round_] for client, round_ in kept]),
    )
