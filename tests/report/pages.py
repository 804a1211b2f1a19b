"""A reader of HTML pages for tests: strict about nesting, and knows text, classes and links."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "link", "br", "img", "input", "hr"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str | None]
    parts: list[Element | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        pieces = (part if isinstance(part, str) else part.text for part in self.parts)
        return " ".join(" ".join(pieces).split())

    def walk(self) -> Iterator[Element]:
        yield self
        for part in self.parts:
            if isinstance(part, Element):
                yield from part.walk()

    def find(self, tag: str | None = None, **attributes: str) -> list[Element]:
        """Return all elements below with that tag and these attributes (class_ for class)."""
        wanted = {name.rstrip("_"): value for name, value in attributes.items()}
        return [
            each
            for each in self.walk()
            if tag in (None, each.tag)
            and all(each.attributes.get(name) == value for name, value in wanted.items())
        ]

    def one(self, tag: str | None = None, **attributes: str) -> Element:
        (found,) = self.find(tag, **attributes)
        return found


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open = [Element("document", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"<{tag}> has an attribute twice"
        element = Element(tag, dict(attrs))
        self.open[-1].parts.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].parts.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        closed = self.open.pop().tag
        assert closed == tag, f"</{tag}> closes <{closed}>"

    def handle_data(self, data: str) -> None:
        self.open[-1].parts.append(data)


def read_page(path: Path) -> Element:
    """Return the page's elements; tags that do not match fail."""
    reader = _Reader()
    reader.feed(path.read_text())
    reader.close()
    (document,) = reader.open
    return document
