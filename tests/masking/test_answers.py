"""A notary's answer is believed for what it was asked, and by whoever asked, only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from coinflower.masking.answers import objection_bytes, prove_answer, require_answer
from coinflower.masking.sealing import SealError, public_bytes
from coinflower.masking.tickets import Occasion
from coinflower.protocol.modes import Mode
from tests.support.builders import make_terms
from tests.support.notaries import KEY, NOTARY

OCCASION = Occasion.of(make_terms(Mode.MASKED), 3)
ASKER = X25519PrivateKey.generate()
PROOF = prove_answer(OCCASION, b"tickets", b"masks", KEY, public_bytes(ASKER))


def believe(**changes: Any) -> None:
    said = {"occasion": OCCASION, "asked": b"tickets", "told": b"masks", "proof": PROOF}
    require_answer(**{**said, "asker": ASKER, "notary": bytes.fromhex(NOTARY), **changes})


def test_what_the_notary_said_is_believed() -> None:
    believe()


@pytest.mark.parametrize(
    "lie",
    [
        {"asked": b"other tickets"},
        {"told": b"other masks"},
        {"told": b""},
        {"occasion": replace(OCCASION, round=4)},
        {"occasion": replace(OCCASION, terms="ab" * 32)},
        {"asker": X25519PrivateKey.generate()},
        {"notary": public_bytes(X25519PrivateKey.generate())},
        {"proof": bytes(32)},
        {"proof": b""},
    ],
    ids=[
        "other tickets",
        "other masks",
        "no masks",
        "another round",
        "other terms",
        "another asker",
        "another notary",
        "another proof",
        "no proof",
    ],
)
def test_nothing_else_is(lie: dict[str, Any]) -> None:
    with pytest.raises(SealError, match="not said by this notary"):
        believe(**lie)


def test_objections_with_other_blame_are_other_answers() -> None:
    sentences = [objection_bytes("a", [1, 2]), objection_bytes("a", [12]), objection_bytes("a", [])]
    assert len(set(sentences)) == 3
