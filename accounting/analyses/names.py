"""Every analysis by its name, for people and for ledgers."""

from __future__ import annotations

from coinflower.accounting.analyses.analysis import Analysis
from coinflower.accounting.analyses.baselines import (
    CentralShuffling,
    OnlyLocalSampling,
    WeakClientSampling,
)
from coinflower.accounting.analyses.certified import Certified, CertifiedBySample
from coinflower.accounting.analyses.paper import AsPlotted, AsPrinted
from coinflower.accounting.errors import UserError
from coinflower.accounting.mechanism import Round

SCHEMES: dict[str, type[Analysis]] = {
    analysis.name: analysis
    for analysis in (
        Certified,
        WeakClientSampling,
        OnlyLocalSampling,
        CentralShuffling,
        AsPlotted,
        AsPrinted,
    )
}
"""What commands call them; of those that share a name, the one that is charged today."""
DEFAULT_SCHEME = Certified.name
CHARGED: dict[str, type[Analysis]] = {
    analysis.ledger_name: analysis
    for analysis in (Certified, CertifiedBySample, WeakClientSampling, OnlyLocalSampling)
}
"""What ledgers call them: names are added here, and never changed or taken away."""


def scheme_class(name: str) -> type[Analysis]:
    """Return the analysis of that name, or say which names there are."""
    try:
        return SCHEMES[name]
    except KeyError:
        raise UserError(
            f"scheme = {name!r} is unknown; choose one of {', '.join(SCHEMES)}."
        ) from None


def analyses_of(round_: Round) -> dict[str, type[Analysis]]:
    """Return the analyses, by name, that have something to say about this round."""
    return {
        name: analysis
        for name, analysis in SCHEMES.items()
        if analysis.takes_cap or not round_.is_capped
    }


def charged_analysis(ledger_name: str) -> type[Analysis]:
    """Return the analysis that a ledger's entry names, or say that it is newer than the program."""
    try:
        return CHARGED[ledger_name]
    except KeyError:
        raise UserError(
            f"The ledger has charges by an analysis {ledger_name!r} that this program does not "
            "know; use the program that wrote them, or a newer one."
        ) from None
