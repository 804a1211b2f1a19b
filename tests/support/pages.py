"""A reader of HTML pages for tests: strict about nesting, and knows text, classes and links."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "img", "input", "hr"}


@dataclass
class Element:
    tag: str
    attributes: dict
    parts: list = field(default_factory=list)

    @property
    def text(self):
        pieces = (part if isinstance(part, str) else part.text for part in self.parts)
        return " ".join(" ".join(pieces).split())

    def walk(self):
        yield self
        for part in self.parts:
            if isinstance(part, Element):
                yield from part.walk()

    def find(self, tag=None, **attributes):
        """Return all elements below with that tag and these attributes (class_ for class)."""
        wanted = {name.rstrip("_"): value for name, value in attributes.items()}
        return [
            each
            for each in self.walk()
            if tag in (None, each.tag)
            and all(each.attributes.get(name) == value for name, value in wanted.items())
        ]

    def one(self, tag=None, **attributes):
        (found,) = self.find(tag, **attributes)
        return found


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open = [Element("document", {})]

    def handle_starttag(self, tag, attributes):
        names = [name for name, _ in attributes]
        assert len(names) == len(set(names)), f"<{tag}> has an attribute twice"
        element = Element(tag, dict(attributes))
        self.open[-1].parts.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attributes):
        self.open[-1].parts.append(Element(tag, dict(attributes)))

    def handle_endtag(self, tag):
        closed = self.open.pop().tag
        assert closed == tag, f"</{tag}> closes <{closed}>"

    def handle_data(self, data):
        self.open[-1].parts.append(data)


def read_page(path):
    """Return the page's elements; tags that do not match fail."""
    reader = _Reader()
    reader.feed(path.read_text())
    reader.close()
    (document,) = reader.open
    return document
