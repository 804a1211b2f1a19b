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
        raise ValueError(
            f"scheme = {name!r} is unknown; choose one of {', '.join(SCHEMES)}."
        ) from None
