"""A report as a reader sees it: elements and text, parsed from the HTML."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "br", "path", "hr", "img", "input"}


class Element:
    """A node with its attributes and everything inside."""

    def __init__(self, tag: str, attributes: dict[str, str | None]) -> None:
        self.tag, self.attributes = tag, attributes
        self.children: list[Element | str] = []

    @property
    def classes(self) -> list[str]:
        return (self.attributes.get("class") or "").split()

    def all(self, tag: str | None = None, cls: str | None = None) -> list[Element]:
        """Descendants by tag and class, in document order."""
        found: list[Element] = []
        for child in self.children:
            if isinstance(child, Element):
                if (tag is None or child.tag == tag) and (cls is None or cls in child.classes):
                    found.append(child)
                found += child.all(tag, cls)
        return found

    def by_id(self, name: str) -> Element:
        return next(e for e in self.all() if e.attributes.get("id") == name)

    @property
    def text(self) -> str:
        return " ".join("".join(self._texts()).split())

    def _texts(self) -> list[str]:
        return [t for c in self.children for t in ([c] if isinstance(c, str) else [*c._texts(), " "])]


class _Builder(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.root = Element("", {})
        self.stack = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, dict(attrs))
        self.stack[-1].children.append(element)
        if tag not in VOID:
            self.stack.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.stack[-1].children.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.stack[-1].tag == tag, f"</{tag}> closes <{self.stack[-1].tag}>"
            self.stack.pop()

    def handle_data(self, data: str) -> None:
        self.stack[-1].children.append(data)


def parse(html: str) -> Element:
    """The document; unbalanced tags fail."""
    builder = _Builder()
    builder.feed(html)
    builder.close()
    assert builder.stack == [builder.root]
    return builder.root


def value_of(text: str) -> float:
    """A number as it is shown, back as a number."""
    return float(text.replace("\u2212", "-").replace(",", ""))
