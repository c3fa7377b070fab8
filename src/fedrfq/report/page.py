"""The page: sections of text and figures, with all that draws them inside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from fedrfq.report import markup
from fedrfq.report.figure import Figure
from fedrfq.report.theme import DAY, NIGHT

_HOW = (
    "Hover or tap for values. Click a legend's entries to single series out, and again for all. "
    "Hold Ctrl (⌘) and turn the wheel to zoom, drag to move, double-click to go back."
)


@dataclass(frozen=True)
class Section:
    """A heading with its figures, and HTML before them."""

    title: str
    body: str = ""
    figures: Sequence[Figure] = ()


@dataclass(frozen=True)
class ReportPage:
    title: str
    subtitle: str
    head: str  # HTML below the title
    sections: Sequence[Section]

    def figures(self) -> list[Figure]:
        return [figure for section in self.sections for figure in section.figures]

    def render(self, program: str) -> str:
        """The whole file; `program` is what defines vegaEmbed."""
        style = _part("page.css")
        script = _part("page.js")
        drawn = {figure.name: figure.page() for figure in self.figures()}
        given = markup.data({"figures": drawn, "day": DAY, "night": NIGHT})
        scripts = " ".join(f"'{markup.digest(code)}'" for code in (program, script))
        policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; script-src 'unsafe-eval' {scripts}"
        return (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            '<meta name="color-scheme" content="light dark">\n'
            f"<title>{markup.text(self.title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
            f"<header><h1>{markup.text(self.title)}</h1><p>{markup.text(self.subtitle)}</p></header>\n{self.head}\n"
            f'<p class="how">{markup.text(_HOW)}</p>\n'
            + "\n".join(_section(section) for section in self.sections)
            + f'\n</main>\n<script type="application/json" id="given">{given}</script>\n'
            f"<script>{program}</script>\n<script>{script}</script>\n</body>\n</html>\n"
        )


def _section(section: Section) -> str:
    drawn = "".join(
        _figure(figure, len(section.figures) > 1 or figure.title != section.title)
        for figure in section.figures
    )
    return f"<section><h2>{markup.text(section.title)}</h2>{section.body}{drawn}</section>"


def _figure(figure: Figure, titled: bool) -> str:
    if titled:
        title = f"<h3>{markup.text(figure.title)}</h3>"
    else:
        title = ""
    save = '<span class="save"><button data-save="png">PNG</button><button data-save="csv">CSV</button></span>'
    return (
        f'<figure id="{figure.name}">{title}<div class="chart"></div>'
        f"<figcaption>{markup.text(figure.caption)} {save}</figcaption></figure>"
    )


def _part(name: str) -> str:
    return files("fedrfq.report").joinpath(name).read_text(encoding="utf-8")
