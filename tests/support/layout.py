"""What every page must keep to in a browser, whatever its width and colours."""

from __future__ import annotations

from typing import Any

_OVERLAPS = """
const wide = [...document.querySelectorAll("body *")].filter((one) => {
  const box = one.getBoundingClientRect();
  return box.width && box.right > innerWidth + 0.5 && !one.matches(".skip");
});
const right = (one) => one.getBoundingClientRect().right;
const spilled = [...document.querySelectorAll(".card *:not(svg *)")].filter(
  (one) => right(one) > right(one.closest(".card")) + 0.5);
const crossed = [];
const siblings = (box) => [...box.children].filter((one) => one.getBoundingClientRect().height);
for (const box of document.querySelectorAll("main, .card, .figures, .pairs > div, header, tr")) {
  const parts = siblings(box).map(
    (one) => [one.outerHTML.slice(0, 80), one.getBoundingClientRect()]);
  for (const [index, [name, a]] of parts.entries())
    for (const [other, b] of parts.slice(index + 1))
      if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
          Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1) crossed.push([name, other]);
}
const tight = [...document.querySelectorAll("body *:not(svg *)")].filter(
  (one) => one.clientWidth && one.scrollWidth > one.clientWidth + 1);
const torn = [...document.querySelectorAll("data, thead th, .figures dd")].filter((one) => {
  const range = document.createRange();
  range.selectNodeContents(one);
  const words = one.innerText.trim().split(/\\s+/).length;
  return new Set([...range.getClientRects()].map((box) => box.top)).size > words;
});
return {
  torn: torn.map((one) => one.outerHTML.slice(0, 80)),
  scroll: Math.max(0, document.documentElement.scrollWidth - innerWidth),
  wide: wide.map((one) => one.outerHTML.slice(0, 80)),
  tight: tight.map((one) => one.outerHTML.slice(0, 80)),
  spilled: spilled.map((one) => one.outerHTML.slice(0, 80)),
  crossed,
};
"""

_FAINT = """
const parse = (text) => text.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
  .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
  .reduce((sum, c, index) => sum + c * [0.2126, 0.7152, 0.0722][index], 0);
const ground = (one) => {
  for (let at = one; at; at = at.parentElement) {
    const colour = parse(getComputedStyle(at).backgroundColor);
    if (colour.length === 3 || colour[3] === 1) return colour;
  }
  return [255, 255, 255];
};
return [...document.querySelectorAll("body *")].filter((one) =>
  [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim())
  && one.getBoundingClientRect().height).map((one) => {
  const style = getComputedStyle(one);
  const ink = light(parse(one.closest("svg") ? style.fill : style.color));
  const paper = light(ground(one));
  const ratio = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
  return [one.outerHTML.slice(0, 80), ratio];
}).filter(([, ratio]) => ratio < 4.5);
"""


def require_sound_layout(browser: Any) -> None:
    """Check that nothing overlaps or is cut off at any width, and all can be read in any light."""
    for width in (360, 1000, 1400):
        browser.resize(width)
        found = browser.run(_OVERLAPS)
        assert not any(found.values()), f"at {width} px: {found}"
    for scheme in ("light", "dark"):
        browser.prefer(scheme)
        assert browser.run(_FAINT) == []
        ground = browser.run("return getComputedStyle(document.body).backgroundColor")
        assert (int(ground[4:].split(",")[0]) < 128) == (scheme == "dark")
