"""Every scheme by its name."""

from __future__ import annotations

from coinflower.accounting.analyses.paper import AsPlotted, AsPrinted
from coinflower.accounting.analyses.schemes import (
    CentralShuffling,
    Certified,
    OnlyLocalSampling,
    Scheme,
    WeakClientSampling,
)
from coinflower.accounting.errors import UserError

SCHEMES: dict[str, type[Scheme]] = {
    scheme.name: scheme
    for scheme in (
        Certified,
        WeakClientSampling,
        OnlyLocalSampling,
        CentralShuffling,
        AsPlotted,
        AsPrinted,
    )
}
DEFAULT_SCHEME = Certified.name


def scheme_class(name: str) -> type[Scheme]:
    """Return the scheme of that name, or say which names there are."""
    try:
        return SCHEMES[name]
    except KeyError:
        raise UserError(
            f"scheme = {name!r} is unknown; choose one of {', '.join(SCHEMES)}."
        ) from None
