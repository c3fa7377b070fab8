"""The page that follows what is watched, and the state that it asks for again and again."""

from __future__ import annotations

import re

from fedrfq.files.strict_json import to_json
from fedrfq.report.page import ReportPage, Section, document, resource

_BODY = """\
<header><h1>fedrfq watch</h1><p></p></header>
<ul class="notes" id="lost" hidden><li>No answer from <code>fedrfq watch</code>: it has ended, and \
this is what it saw last.</li></ul>
<div id="head"></div>
<div id="sections"></div>"""


def shell(program: str) -> str:
    """Return the page without anything in it; `program` is the JavaScript that defines vegaEmbed.

    It may ask nobody but the server that it came from.
    """
    scripts = [program, resource("live.js")]
    return document("fedrfq watch", _BODY, scripts, {}, "; connect-src 'self'")


def state(page: ReportPage) -> str:
    """Return what the page shows as JSON, which live.js puts into it."""
    return to_json(
        {
            "title": page.title,
            "subtitle": page.subtitle,
            "head": page.head,
            "sections": [_section(section) for section in page.sections],
            "figures": {figure.name: figure.page() for figure in page.figures()},
        }
    )


def _section(section: Section) -> dict[str, object]:
    return {
        # Titles are this program's own words; a name in the page must not be that of a figure.
        "id": "card-" + re.sub(r"\W+", "-", section.title.lower()),
        "title": section.title,
        "body": section.body,
        "figures": [
            {"name": figure.name, "title": figure.title, "caption": figure.caption}
            for figure in section.figures
        ],
    }
