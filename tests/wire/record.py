"""Questions and answers, put together from what a listening SuperLink wrote down."""

import pickle
from dataclasses import dataclass

from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from coinflower.protocol import messages
from tests.wire.listening_superlink import (
    FETCHED,
    HEARTBEAT,
    MESSAGE,
    OBJECT,
    POLL,
    RUNTIME,
    TRAFFIC,
)


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """One question and its answer; times are Unix times.

    Attributes:
        node: Who was asked.
        kind: The question's message type.
        question: The question's record.
        answer: The answer's record; empty for an error.
        metadata: The answer's metadata.
        sent_at: When the server says it made the question, which the node reads.
        asked_at: When the question was stored.
        fetched_at: When the node took it.
        answered_at: When the answer's head was stored.
        stored_at: When the last of its objects was.
        sizes: Bytes of the answer's objects.
        wanted: How many of these the SuperLink did not have already.
        traffic: Bytes of the head as sent, and of what was replied to it.
        runtime: Processing time that the client stated.
    """

    node: int
    kind: str
    question: dict
    answer: dict
    metadata: dict
    sent_at: float
    asked_at: float
    fetched_at: float
    answered_at: float
    stored_at: float
    sizes: list
    wanted: int
    traffic: tuple
    runtime: float


def read_exchanges(path):
    """Return every question whose answer arrived whole, oldest first."""
    objects, fetched, questions, answers, latest = {}, {}, {}, {}, {}
    for event in _events(path):
        if event["what"] == OBJECT:
            objects.setdefault(event["name"], []).append(event)
        elif event["what"] == FETCHED:
            fetched.setdefault(event["message"], event["at"])
        elif event["what"] == MESSAGE:
            # Beside a head, its handler stores sizes and running time, in the same thread.
            latest[event["thread"]] = event
            asked = event["metadata"]["_reply_to_message_id"]
            if asked:
                answers[asked] = event
            else:
                questions[event["metadata"]["_message_id"]] = event
        elif event["what"] in (TRAFFIC, RUNTIME) and event["thread"] in latest:
            latest[event["thread"]].setdefault(event["what"], event)
    return [
        _exchange(question, answers[name], fetched[name], objects)
        for name, question in questions.items()
        # A run may end while the last answers are still on their way.
        if name in answers and all(part in objects for part in answers[name]["tree"])
    ]


def read_visits(path):
    """Return when each node polled and when it sent a heartbeat, by kind and node."""
    visits = {POLL: {}, HEARTBEAT: {}}
    for event in _events(path):
        if event["what"] in visits:
            visits[event["what"]].setdefault(event["node"], []).append(event["at"])
    return visits


def _exchange(question, answer, fetched_at, objects):
    stored = [_stored(objects, name, answer["at"]) for name in answer["tree"]]
    traffic = answer.get(TRAFFIC, {"bytes_sent": 0, "bytes_recv": 0})
    return Exchange(
        node=question["metadata"]["_dst_node_id"],
        kind=question["metadata"]["_message_type"],
        question=_record(question, objects, messages.ASK),
        answer={} if answer["failed"] else _record(answer, objects, messages.ANSWER),
        metadata=answer["metadata"],
        sent_at=question["metadata"]["_created_at"],
        asked_at=question["at"],
        fetched_at=fetched_at,
        answered_at=answer["at"],
        stored_at=max([one["at"] for one in stored if one], default=answer["at"]),
        sizes=[len(one["content"]) for one in stored if one],
        wanted=len(answer["wanted"]),
        traffic=(traffic["bytes_recv"], traffic["bytes_sent"]),
        runtime=answer.get(RUNTIME, {"runtime": -1.0})["runtime"],
    )


def _stored(objects, name, after):
    """Return the object as it came with a message, or as it was there before."""
    copies = objects.get(name, [])
    return next((one for one in copies if one["at"] >= after), copies[-1] if copies else None)


def _record(message, objects, key):
    """Return a record of a message, whose tree lists its records, what holds them, and the head."""
    contents = {name: objects[name][0]["content"] for name in message["tree"]}
    found = inflate_object_from_contents(message["tree"][-2], contents)
    return dict(found.config_records[key])


def _events(path):
    with path.open("rb") as file:
        while file.peek(1):
            yield pickle.load(file)
