"""The paper's figures as pictures and CSV files, its own points laid over our curves."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from coinflower.accounting.analyses.certified import Certified
from coinflower.accounting.analyses.paper import AsPlotted
from coinflower.accounting.plots import new_axes, save
from coinflower.experiments.paper.figures import (
    FIGURES,
    Figure,
    load_points,
    require_drawable_figure,
    sigma_table,
)


def draw_all(
    out: Path, points: Path | None, numbers: Collection[int] = ()
) -> Iterator[tuple[int | None, str]]:
    """Draw figures into ``out``, yielding number and name of each once it is there.

    Args:
        out: A folder.
        points: The paper's own points; None for the copy that we carry.
        numbers: Figures by the paper's own numbers; all, with the table of σ, if there are none.

    Raises:
        UserError: The paper has no such figure, or it shows trainings.
    """
    for number in numbers:
        require_drawable_figure(number)
    paper = load_points(points)
    out.mkdir(parents=True, exist_ok=True)
    captions = []
    for number, (name, make) in enumerate(FIGURES.items(), start=1):
        if numbers and number not in numbers:
            continue
        figure = make(paper)
        _draw(figure, out)
        _write_series(figure, out / f"{name}.csv")
        captions.append(
            f"## Figure {number}: {figure.title}\n\n![{name}]({name}.png)\n\n{figure.caption}\n"
        )
        yield number, name
    if not numbers:
        captions.append(_draw_sigma_table(out))
        yield None, "sigma_table"
    (out / "README.md").write_text("# The paper's figures\n\n" + "\n".join(captions))


def _draw_sigma_table(out: Path) -> str:
    """Draw and write the table of noise levels; returns its section of the page."""
    rows = sigma_table()
    caption = _draw_sigmas(rows, out)
    with (out / "sigma_table.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return f"## Noise for (0.015, 1e-6) in one round\n\n![σ](sigma_table.png)\n\n{caption}\n"


def _write_series(figure: Figure, path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["curve", "source", figure.x_label, figure.y_label])
        for source, group in (("computed", figure.curves), ("paper's figure", figure.points)):
            for name, series in group.items():
                writer.writerows([name, source, x, y] for x, y in series)


def _style(curve: str) -> dict[str, object]:
    """Return line style and legend text; what is no upper bound says so."""
    base = curve.split(" ", maxsplit=1)[0]
    if base == "realised":
        return {"linestyle": "--", "linewidth": 1, "label": f"{curve} (lower bound)"}
    if base == AsPlotted.name:
        return {"linestyle": ":", "linewidth": 1.2, "label": f"{curve} (not an upper bound)"}
    if base == Certified.name:
        return {"linestyle": "-", "linewidth": 2, "label": curve}
    dashes = {"ols": "-", "wcs": (0, (6, 2)), "cs": (0, (1, 1))}
    if base in dashes:
        return {"linestyle": dashes[base], "linewidth": 1.3, "color": "0.35", "label": curve}
    return {"linestyle": "-.", "linewidth": 1.5, "label": curve}


def _draw(figure: Figure, out: Path) -> None:
    picture, axes = new_axes(figure.title, figure.x_label, figure.y_label, height=6.0)
    colours: dict[str, str] = {}
    markers = iter("osD^vPX*")
    for name, series in figure.curves.items():
        style = _style(name)
        size = name.rsplit("d=", maxsplit=1)[-1] if "d=" in name else name
        if "color" not in style:
            style["color"] = colours.setdefault(size, f"C{len(colours)}")
        axes.plot(*zip(*series, strict=True), **style)
    for name, series in figure.points.items():
        if series:
            note = "" if name in ("OLS", "WCS") else ", not an upper bound"
            colour = colours.get(name.removeprefix("d="), "0.4")
            axes.plot(
                *zip(*series, strict=True),
                linestyle="none",
                marker=next(markers),
                markersize=4,
                color=colour,
                label=f"paper's points, {name}{note}",
            )
    axes.set_xscale("log" if figure.log_x else "linear")
    axes.set_yscale("log")
    axes.legend(fontsize=6, loc="center left", bbox_to_anchor=(1.01, 0.5))
    picture.text(0.02, -0.06, figure.caption, fontsize=7, wrap=True)
    save(picture, out / f"{figure.name}.png", out / f"{figure.name}.svg")


def _draw_sigmas(rows: list[dict[str, Any]], out: Path) -> str:
    caption = (
        "Each analysis' noise for the same claim; orange bars are not an upper bound, so their "
        "noise is too small for the claim (the search for the least noise ends at 0.01). "
        "The paper rounds its figures."
    )
    picture, axes = new_axes("σ for (ε, δ) = (0.015, 1e-6), one round", "σ", "", height=5.5)
    labels = [f"{row['scenario']}: {row['scheme']}" for row in rows]
    colours = ["C0" if row["upper_bound"] else "C1" for row in rows]
    names = {"C0": "upper bound of the scheme it names", "C1": "not an upper bound"}
    for label, row, colour in zip(labels, rows, colours, strict=True):
        axes.barh(label, row["sigma"], color=colour, label=names.pop(colour, None))
    printed = [(row["sigma_in_paper"], label) for row, label in zip(rows, labels, strict=True)]
    marks = [(value, label) for value, label in printed if value is not None]
    axes.plot(*zip(*marks, strict=True), "kD", linestyle="none", label="printed in the paper")
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.legend(fontsize=8)
    picture.text(0.02, -0.02, caption, fontsize=7, wrap=True)
    save(picture, out / "sigma_table.png", out / "sigma_table.svg")
    return caption
