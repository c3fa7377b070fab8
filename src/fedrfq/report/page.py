"""The HTML page of a report: sections of text and figures, and all code and data that draw them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from fedrfq.report import markup
from fedrfq.report.figure import Figure, Spec
from fedrfq.report.theme import DAY, NIGHT

_HELP = (
    "Hover over a point or tap it to see its values. Click an entry of a legend to single it out, "
    "and again to show all. Hold Ctrl (⌘) and turn the mouse wheel to zoom, drag to move, "
    "double-click to reset."
)
_SAVE_BUTTONS = (
    '<span class="save"><button data-save="png">PNG</button>'
    '<button data-save="csv">CSV</button></span>'
)
_DOCUMENT = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<main>
{body}
</main>
<script type="application/json" id="given">{given}</script>
{scripts}
</body>
</html>
"""
_BODY = """\
<header><h1>{title}</h1><p>{subtitle}</p></header>
{head}
<p class="how">{help}</p>
{sections}"""


@dataclass(frozen=True)
class Section:
    """A heading with HTML below it, and then figures."""

    title: str
    body: str = ""
    figures: Sequence[Figure] = ()


@dataclass(frozen=True)
class ReportPage:
    """The content of a page; `head` is HTML below the title.

    `left_out` says what the page does not show and why, which stands in its head as well.
    """

    title: str
    subtitle: str
    head: str
    sections: Sequence[Section]
    left_out: Sequence[str] = ()

    def figures(self) -> list[Figure]:
        """Return the figures of all sections."""
        return [figure for section in self.sections for figure in section.figures]

    def render(self, program: str) -> str:
        """Return the complete file; `program` is the JavaScript that defines vegaEmbed."""
        title = markup.text(self.title)
        body = _BODY.format(
            title=title,
            subtitle=markup.text(self.subtitle),
            head=self.head,
            help=markup.text(_HELP),
            sections="\n".join(_section(section) for section in self.sections),
        )
        specs = {figure.name: figure.page() for figure in self.figures()}
        return document(title, body, [program, resource("page.js")], specs)


def document(
    title: str, body: str, scripts: Sequence[str], specs: Mapping[str, Spec], allowed: str = ""
) -> str:
    """Return a complete HTML file, which draws the figures of `specs` by their names.

    The first script defines vegaEmbed, the second acts on the page. `allowed` is what the content
    security policy allows beside them.
    """
    program, page = scripts
    scripts = [program, resource("charts.js"), page]
    return _DOCUMENT.format(
        policy=_policy(scripts) + allowed,
        title=title,
        style=resource("page.css"),
        body=body,
        given=markup.data({"figures": specs, "day": DAY, "night": NIGHT}),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
    )


def _policy(scripts: Sequence[str]) -> str:
    """Return a content security policy: no network, and no script but these."""
    digests = " ".join(f"'{markup.digest(script)}'" for script in scripts)
    # Vega compiles its expressions, which browsers count as eval.
    return (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; "
        f"script-src 'unsafe-eval' {digests}"
    )


def _section(section: Section) -> str:
    # A single figure with the section's own title would repeat it.
    figures = "".join(
        _figure(figure, len(section.figures) > 1 or figure.title != section.title)
        for figure in section.figures
    )
    return f"<section><h2>{markup.text(section.title)}</h2>{section.body}{figures}</section>"


def _figure(figure: Figure, titled: bool) -> str:
    title = ""
    if titled:
        title = f"<h3>{markup.text(figure.title)}</h3>"
    return (
        f'<figure id="{figure.name}">{title}<div class="chart"></div>'
        f"<figcaption>{markup.text(figure.caption)} {_SAVE_BUTTONS}</figcaption></figure>"
    )


def resource(name: str) -> str:
    """Return the text of a file that lies beside this module."""
    return files("fedrfq.report").joinpath(name).read_text(encoding="utf-8")
