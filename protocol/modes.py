"""The modes of an experiment: who adds the noise, who sees what, and every sentence about it.

Reports, `explain`, the owner's page and the tables in the documents take their words from here;
`python -m tools.mode_tables` writes the tables, and a test compares them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from coinflower.accounting.analyses.analysis import Analysis
from coinflower.accounting.analyses.baselines import OnlyLocalSampling, WeakClientSampling
from coinflower.accounting.analyses.certified import Certified
from coinflower.accounting.errors import UserError


@dataclass(frozen=True, kw_only=True)
class ModeFacts:
    """What is true of a mode. Sentences are Markdown: scheme names stand in backticks.

    Attributes:
        scheme: The analysis that bounds a round; None without privacy.
        client_adds_noise: Whether noise is added before a message leaves the client.
        server_adds_noise: Whether the server is trusted to add the noise.
        answers_always: Whether a client answers in every round, whatever its coin says.
        flips_coins: Whether a client may sit out; otherwise p is 1.
        masks_sums: Whether a client adds a share of the noise only, under a mask that a notary
            takes off sums over many clients.
        label: The mode in one short clause, for a data owner.
        choose_if: When a data owner would allow it.
        noise: Who adds it.
        against: Whom the ledger's ε protects against.
        against_readers: Whether that includes everybody who gets the model, other clients too.
        against_network: Whether it includes someone watching a client's network connection.
        against_server: Whether it includes the server.
        if_misplaced: What is lost if somebody who is trusted does not deserve it.
        server_sees: What the server sees of the coins and the data.
        network_sees: What someone watching a client's line sees of the coins, outside of TLS.
        clients_see: What another client sees of the coins.
        caveat: What a report must add to ``against``; empty if nothing.
    """

    scheme: type[Analysis] | None
    client_adds_noise: bool = False
    server_adds_noise: bool = False
    answers_always: bool = False
    flips_coins: bool = True
    masks_sums: bool = False
    label: str
    choose_if: str
    noise: str
    against: str
    against_readers: str
    against_network: str
    against_server: str
    if_misplaced: str
    server_sees: str
    network_sees: str
    clients_see: str
    caveat: str = ""


class Mode(StrEnum):
    """Who adds the noise, and who sees that a client took part."""

    TRUSTED = "trusted"
    COVERED = "covered"
    UNTRUSTED = "untrusted"
    MASKED = "masked"
    QUIET = "quiet"
    LOCAL_ONLY = "local-only"
    NONE = "none"

    @property
    def facts(self) -> ModeFacts:
        """What is true of this mode, in figures and in words."""
        return _FACTS[self]

    @property
    def scheme(self) -> type[Analysis] | None:
        """The analysis that bounds a round of this mode; None without privacy."""
        return self.facts.scheme

    @property
    def charged_as(self) -> str:
        """Name of that analysis, or "nothing"."""
        return self.facts.scheme.name if self.facts.scheme else "nothing"

    @property
    def client_adds_noise(self) -> bool:
        """Whether noise is added before a message leaves the client."""
        return self.facts.client_adds_noise

    @property
    def server_adds_noise(self) -> bool:
        """Whether the server is trusted to add the noise."""
        return self.facts.server_adds_noise

    @property
    def is_private(self) -> bool:
        """Whether anything is protected."""
        return self.facts.scheme is not None

    @property
    def answers_always(self) -> bool:
        """Whether a client answers in every round, whatever its coin says."""
        return self.facts.answers_always

    @property
    def flips_coins(self) -> bool:
        """Whether a client may sit out; otherwise p is 1."""
        return self.facts.flips_coins

    @property
    def masks_sums(self) -> bool:
        """Whether nothing but sums over many clients can be opened, with a notary's help."""
        return self.facts.masks_sums

    @property
    def hides_coins(self) -> bool:
        """Whether the figures count on nobody but the trusted seeing who takes part."""
        return self.facts.scheme is Certified

    @property
    def shows_coins(self) -> bool:
        """Whether everybody may see who takes part, and rounds are charged so."""
        return self.facts.scheme is WeakClientSampling

    @property
    def usual_p(self) -> float:
        """The participation probability of whoever does not choose one."""
        return 0.5 if self.flips_coins else 1.0

    def noises_in_sum(self, *, asked: float, took_part: float, honest: int = 1) -> float:
        """Return how many independent noises of σ·C the sum of a round carries.

        Args:
            asked: How many clients were asked.
            took_part: How many of them took part.
            honest: How many shares make one noise, where clients add shares.
        """
        if self.client_adds_noise:
            return (asked if self.answers_always else took_part) / honest
        return float(self.server_adds_noise)


_READERS = "everybody who sees the model, during training and after, other clients included"

_FACTS = {
    Mode.TRUSTED: ModeFacts(
        scheme=Certified,
        server_adds_noise=True,
        label="the server is trusted and adds the noise",
        choose_if="you would show the server the sums of your gradients: it adds the noise for "
        "everybody",
        noise="the server, once",
        against=f"{_READERS}; but not the server, which is trusted with every sum and every coin",
        against_readers="yes; but unless rounds have a fixed pace, other clients can tell from "
        "the length of a round who takes part, so against them only `wcs` holds",
        against_network="at the ε of `wcs`: it shows who takes part",
        against_server="no: it sees sums and coins",
        if_misplaced="A server that keeps the sums, or leaves out the noise, has the bare sum "
        "of clipped gradients of every client that took part, and the ledger's ε means "
        "nothing. A network observer who counts messages, or a client that times rounds "
        "without a fixed pace, learns who took part: the rounds are then worth what `wcs` "
        "says, not `certified`",
        server_sees="coins and bare sums: it is trusted with both",
        network_sees="**who takes part**: the model goes to participants only, and sums come "
        "from them only. Against such a listener `wcs` is the ε that holds; `coinflower "
        "compare` shows it beside `certified`",
        clients_see="how long rounds last, which reveals **who takes part**: `wcs` holds. With a "
        "fixed pace only when it is asked itself: `certified` holds",
        caveat="Someone watching a client's network connection may see when it takes part, and "
        "so may another client that times rounds, unless they have a fixed pace "
        "(round_seconds). The figure for secret coins does not hold against them; the one for "
        "visible participation (scheme wcs) does.",
    ),
    Mode.COVERED: ModeFacts(
        scheme=Certified,
        server_adds_noise=True,
        answers_always=True,
        label="the server is trusted and adds the noise; this client always answers",
        choose_if="as `trusted`, and nobody listening on your network may see when you take "
        "part: your client answers in every round",
        noise="the server, once; a client that sits out sends zeros",
        against=f"{_READERS}, and everybody listening on the network; but not the server, "
        "which is trusted with every sum and every coin",
        against_readers="yes",
        against_network="yes: everybody always answers",
        against_server="no: it sees sums and coins",
        if_misplaced="As `trusted` for the server. To a network observer every round looks "
        "alike, and our classifiers found no coin in its traffic",
        server_sees="coins and bare sums: a sum of zeros is a coin that said no",
        network_sees="that everybody is asked and answers in every round",
        clients_see="how long the slowest client takes, whatever the coins",
    ),
    Mode.UNTRUSTED: ModeFacts(
        scheme=Certified,
        client_adds_noise=True,
        answers_always=True,
        label="this client adds noise to everything it sends and always answers",
        choose_if="you trust nobody: your client adds the noise itself, and answers in every "
        "round so that nobody sees the coin",
        noise="every client, to every message; a client that sits out sends noise alone",
        against="everybody, the server included: each client adds the noise itself and answers "
        "in every round, so nobody sees who took part",
        against_readers="yes",
        against_network="yes",
        against_server="yes: everybody always answers",
        if_misplaced="Nobody is trusted. A curious or lying server gains nothing: noise is in "
        "every message, the coin in none. It can waste budget and spoil the model",
        server_sees="from everybody, in every round, noise or a noisy sum",
        network_sees="that everybody is asked and answers in every round",
        clients_see="how long the slowest client takes, whatever the coins",
    ),
    Mode.MASKED: ModeFacts(
        scheme=Certified,
        client_adds_noise=True,
        answers_always=True,
        masks_sums=True,
        label="this client adds a share of the noise, always answers, and only sums over many "
        "clients can be opened",
        choose_if="you trust neither the server nor the notary, but that the two do not conspire, "
        "nor the server with more clients than the terms count on: your client masks what it "
        "sends, and a notary that you pin lets the server open sums over many clients, and nothing "
        "else; these need much less noise than `untrusted`",
        noise="every client, a share of it; only the sum over many clients can be opened",
        against="everybody, the server included, as long as it conspires neither with every notary "
        "nor with more clients than the terms count on: nothing but sums can be opened, the shares "
        "of the others are noise enough for them, and everybody answers in every round",
        against_readers="yes, up to as many colluding clients as the terms count on",
        against_network="yes",
        against_server="yes, unless it conspires with every notary, or with more clients than the "
        "terms count on",
        if_misplaced="A server that conspires with every notary can open each client's own "
        "message, which carries σ/√h of noise instead of σ. If more clients conspire than the "
        "terms count on, the sums carry less noise than is charged. A server or a notary alone "
        "gains nothing, whatever lies it tells; it can waste budget and spoil the model",
        server_sees="from everybody, in every round, numbers that look uniformly random, and the "
        "noisy sum over at least as many clients as the threshold; a notary sees who answered, and "
        "no gradients",
        network_sees="that everybody is asked and answers in every round",
        clients_see="how long the slowest client takes, whatever the coins",
    ),
    Mode.QUIET: ModeFacts(
        scheme=WeakClientSampling,
        client_adds_noise=True,
        label="this client adds noise and speaks only when it takes part",
        choose_if="as `untrusted`, but your client speaks only when it takes part; costs more "
        "ε for the same noise",
        noise="every client that takes part",
        against="everybody, the server included: each client adds the noise itself; who takes "
        "part may be seen, and is charged as seen",
        against_readers="yes",
        against_network="yes",
        against_server="yes: it sees who takes part, which is charged",
        if_misplaced="Nobody is trusted: rounds are charged as if everybody saw the coins",
        server_sees="who takes part, which is charged, and noisy sums",
        network_sees="who takes part, which is charged",
        clients_see="how long rounds last; who takes part is charged",
    ),
    Mode.LOCAL_ONLY: ModeFacts(
        scheme=OnlyLocalSampling,
        server_adds_noise=True,
        flips_coins=False,
        label="everybody always takes part and the server adds the noise",
        choose_if="you want no coins: your data always takes part, and the server, which sees "
        "the sums of your gradients, adds the noise",
        noise="the server, once; p = 1",
        against=f"{_READERS}; but not the server, which is trusted with every sum",
        against_readers="yes",
        against_network="yes",
        against_server="no: it sees sums",
        if_misplaced="As `trusted` for the server: without its noise the sums are bare",
        server_sees="bare sums of everybody: it is trusted with them",
        network_sees="that everybody answers: there are no coins",
        clients_see="how long rounds last: there are no coins",
    ),
    Mode.NONE: ModeFacts(
        scheme=None,
        label="NO PRIVACY: nothing is protected and nothing is charged",
        choose_if="the data is not worth protecting",
        noise="nobody",
        against="nobody",
        against_readers="no",
        against_network="no",
        against_server="no",
        if_misplaced="Nothing is protected and nothing is charged. A policy must list the mode, "
        "and `coinflower run` needs `--no-privacy`",
        server_sees="everything that is sent",
        network_sees="who takes part",
        clients_see="how long rounds last, and hence who takes part",
    ),
}

PRIVATE_MODES = tuple(mode for mode in Mode if mode.is_private)


def parse_mode(text: str) -> Mode:
    """Return the mode of that name, or say which there are."""
    try:
        return Mode(text)
    except ValueError:
        raise UserError(f"mode = {text!r} is unknown; choose one of {', '.join(Mode)}.") from None
