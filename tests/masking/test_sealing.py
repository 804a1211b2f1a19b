"""Only the notary reads what is sealed to it, and only it proves what it says."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from coinflower.masking.sealing import (
    SealError,
    prove,
    public_bytes,
    require_proof,
    seal,
    sealed_bytes,
    unseal,
)

KEY, OTHER = X25519PrivateKey.generate(), X25519PrivateKey.generate()


@given(st.binary(max_size=100), st.binary(max_size=50))
def test_what_is_sealed_is_read_by_its_notary_for_its_purpose(
    secret: bytes, purpose: bytes
) -> None:
    sealed = seal(secret, public_bytes(KEY), purpose)
    assert len(sealed) == sealed_bytes(len(secret))
    assert unseal(sealed, KEY, purpose) == secret
    with pytest.raises(SealError):
        unseal(sealed, OTHER, purpose)
    with pytest.raises(SealError):
        unseal(sealed, KEY, purpose + b"!")


@given(st.integers(0, 79), st.integers(1, 255))
def test_a_changed_seal_is_refused(place: int, change: int) -> None:
    sealed = bytearray(seal(bytes(32), public_bytes(KEY), b""))
    sealed[place] ^= change
    with pytest.raises(SealError):
        unseal(bytes(sealed), KEY, b"")


def test_the_same_secret_never_looks_the_same() -> None:
    assert len({seal(bytes(32), public_bytes(KEY), b"") for _ in range(10)}) == 10


@pytest.mark.parametrize("key", [bytes(32), bytes(31), b"\x01" + bytes(31)])
def test_nothing_is_sealed_to_what_is_no_key(key: bytes) -> None:
    with pytest.raises(SealError):
        seal(bytes(32), key, b"")
    with pytest.raises(SealError):
        prove(b"", KEY, key)


def test_a_proof_holds_for_one_statement_one_notary_and_one_asker() -> None:
    asker, another = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    proof = prove(b"said", KEY, public_bytes(asker))
    require_proof(b"said", proof, asker, public_bytes(KEY))
    for statement, told, who, notary in (
        (b"unsaid", proof, asker, KEY),
        (b"said", proof[:-1] + b"\0", asker, KEY),
        (b"said", b"", asker, KEY),
        (b"said", proof, another, KEY),
        (b"said", proof, asker, OTHER),
        (b"said", prove(b"said", OTHER, public_bytes(asker)), asker, KEY),
    ):
        with pytest.raises(SealError):
            require_proof(statement, told, who, public_bytes(notary))
