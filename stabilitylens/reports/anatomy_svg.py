"""The picture of a model as SVG, in the colours of the page around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import quoteattr

from markupsafe import Markup, escape

from stabilitylens.anatomy import Anatomy, SubLayer
from stabilitylens.reports import _anatomy_parts as parts
from stabilitylens.reports.anatomy_text import draw

_TRUNK = 84  # where the trunk runs, in pixels from the left, as all lengths here
_BRANCH = 152  # where branches begin
_LIMIT = 460  # the way of queries and keys is broken here, for narrow screens
_BOX, _GAP, _ROW = 30, 20, 84
_MARGIN = 12
_LETTER = 7.4  # of the page's font at 13 px, on the wide side
_PLAIN: Mapping[str, str | float] = {"fill": "none", "stroke": "currentColor", "stroke_width": 1.5}
_NORM: Mapping[str, str | float] = {
    "style": "fill: var(--link, currentColor); stroke: var(--link, currentColor)", "fill_opacity": 0.14, "stroke_width": 1.5
}  # fmt: skip


class _Canvas:
    """Shapes so far, and how far they reach."""

    def __init__(self) -> None:
        self.shapes: list[str] = []
        self.y = 0.0
        self.right = 0.0

    def text(self, x: float, y: float, words: str, **look: str | float) -> None:
        self.shapes.append(_tag("text", escape(words), x=x, y=y, **look))
        self.right = max(self.right, x + len(words) * _LETTER)

    def box(self, x: float, y: float, words: str, norm: bool) -> float:
        """A labelled box with its left edge at x, centred on y; returns its right edge."""
        width = _width(words)
        look = _NORM if norm else _PLAIN
        self.shapes.append(_tag("rect", x=x, y=y - _BOX / 2, width=width, height=_BOX, rx=6, **look))
        self.text(x + width / 2, y + 4.5, words, text_anchor="middle")
        self.right = max(self.right, x + width)
        return x + width

    def line(self, *points: tuple[float, float], arrow: bool = True) -> None:
        path = "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
        self.shapes.append(_tag("path", d=path, **_PLAIN))
        (x0, y0), (x1, y1) = points[-2:]
        if arrow:
            dx, dy = (x1 > x0) - (x1 < x0), (y1 > y0) - (y1 < y0)
            head = f"M{x1:g} {y1:g}l{-7 * dx - 4 * dy:g} {-7 * dy - 4 * dx:g}l{8 * dy:g} {8 * dx:g}z"
            self.shapes.append(_tag("path", d=head))

    def on_trunk(self, words: str, norm: bool) -> None:
        """A box that the trunk runs through."""
        self.line((_TRUNK, self.y), (_TRUNK, self.y + 16))
        self.box(_TRUNK - _width(words) / 2, self.y + 16 + _BOX / 2, words, norm)
        self.y += 16 + _BOX


def draw_svg(anatomy: Anatomy) -> Markup:
    """Draw what :func:`~stabilitylens.reports.anatomy_text.draw` draws, with that as its description.

    Args:
        anatomy: what is to be drawn.

    Returns:
        An ``svg`` element whose lines follow the text colour of the page and whose norms follow its ``--link``; an
        empty string where no branch is known.
    """
    if not anatomy.sub_layers:
        return Markup("")
    canvas = _Canvas()
    canvas.text(_TRUNK - 4, 16, "x", font_style="italic")
    canvas.y = 22
    for count, branches in parts.folded(anatomy.sub_layers):
        _block(canvas, count, branches, anatomy)
    final = parts.final(anatomy)
    if final:
        canvas.on_trunk(final, norm=True)
    canvas.line((_TRUNK, canvas.y), (_TRUNK, canvas.y + 22))
    canvas.y += 34
    for way in parts.attention_ways(anatomy):
        _attention(canvas, way)
    return _element(canvas, anatomy)


def _block(canvas: _Canvas, count: int, branches: Sequence[SubLayer], anatomy: Anatomy) -> None:
    canvas.line((_TRUNK, canvas.y), (_TRUNK, canvas.y + 14), arrow=False)
    canvas.y += 14
    top, place = canvas.y, len(canvas.shapes)
    canvas.text(_BRANCH, top + 18, parts.where(branches, count), font_weight=600)
    canvas.line((_TRUNK, top), (_TRUNK, top + 26), arrow=False)
    canvas.y += 26
    right = max(_branch(canvas, branch, parts.beside(branch, anatomy)) for branch in branches)
    canvas.line((_TRUNK, canvas.y), (_TRUNK, canvas.y + 12), arrow=False)
    canvas.y += 12
    width = max(right, _BRANCH + 150) + 14 - _MARGIN
    frame: dict[str, float] = {"x": _MARGIN, "y": top, "width": width, "height": canvas.y - top, "rx": 10, "stroke_opacity": 0.35}
    canvas.shapes.insert(place, _tag("rect", **frame, **_PLAIN))
    canvas.right = max(canvas.right, right + 14)


def _branch(canvas: _Canvas, branch: SubLayer, beside: bool) -> float:
    """Out of the trunk, through the boxes, and back into a sum; returns how far right it goes."""
    above, below = canvas.y + 22, canvas.y + _ROW - 22
    x: float = _TRUNK
    for i, (title, norm) in enumerate(parts.steps(branch)):
        start = x + _GAP if i else _BRANCH
        canvas.line((x, above), (start, above))
        x = canvas.box(start, above, title, norm)
    canvas.line((x, above), (x + 14, above), (x + 14, below), (_TRUNK + 11, below))
    if beside:
        canvas.text(_BRANCH, below - 6, "beside the one before", font_size=12, opacity=0.75)
    canvas.line((_TRUNK, canvas.y), (_TRUNK, below - 10))
    canvas.shapes.append(_tag("circle", cx=_TRUNK, cy=below, r=10, **_PLAIN))
    cross = f"M{_TRUNK - 10} {below:g}h20M{_TRUNK} {below - 10:g}v20"
    canvas.shapes.append(_tag("path", d=cross, **_PLAIN))
    canvas.y = below + 10
    norm_behind = parts.norm_on_trunk(branch)
    if norm_behind:
        canvas.on_trunk(norm_behind, norm=True)
    return x + 14


def _attention(canvas: _Canvas, way: Sequence[str]) -> None:
    """The way of queries and keys, broken into rows."""
    canvas.y += _BOX
    canvas.text(_MARGIN, canvas.y + 4.5, "q, k", font_style="italic")
    left = _MARGIN + 46
    end = canvas.box(left, canvas.y, way[0], norm=False)
    for words in way[1:]:
        start = end + _GAP
        if start + _width(words) > _LIMIT:
            above, between, below = canvas.y, canvas.y + _BOX * 0.8, canvas.y + _BOX * 1.6
            turn = [(end + 10, above), (end + 10, between), (left - 16, between), (left - 16, below)]
            canvas.line((end, above), *turn, (left, below))
            start, canvas.y = left, below
        else:
            canvas.line((end, canvas.y), (start, canvas.y))
        end = canvas.box(start, canvas.y, words, norm=words.startswith("QK-Norm") or words == "norm")
    canvas.y += 14


def _width(words: str) -> float:
    return len(words) * _LETTER + 22


def _tag(name: str, content: str = "", /, **attributes: str | float) -> str:
    """An element; underscores in names of attributes stand for hyphens."""
    values = {k: v if isinstance(v, str) else format(v, "g") for k, v in attributes.items()}
    told = " ".join(f"{key.replace('_', '-')}={quoteattr(value)}" for key, value in values.items())
    return f"<{name} {told}>{content}</{name}>"


def _element(canvas: _Canvas, anatomy: Anatomy) -> Markup:
    width, height, title = canvas.right + _MARGIN, canvas.y + _BOX / 2, parts.headline(anatomy)
    told = f"<title>{escape(title)}</title><desc>{escape(draw(anatomy))}</desc>"
    look: dict[str, str | float] = {"style": "max-width: 100%; height: auto", "font_size": 13, "fill": "currentColor", "aria_label": title}
    size: dict[str, str | float] = {"viewBox": f"0 0 {width:g} {height:g}", "width": width, "height": height}
    return Markup(_tag("svg", told + "".join(canvas.shapes), role="img", **size, **look))
