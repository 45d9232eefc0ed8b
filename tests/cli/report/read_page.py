"""Prints what a page of dsat report holds, as JSON. Fails if a strict parser refuses the page.

Usage: read_page.py FILE.html
"""

import base64
import hashlib
import json
import re
import sys
import xml.etree.ElementTree as tree

XHTML = "{http://www.w3.org/1999/xhtml}"
SVG = "{http://www.w3.org/2000/svg}"


def text_of(element):
    return " ".join("".join(element.itertext()).split())


def cells_of(row):
    return [
        {"text": text_of(cell), "value": cell.get("data-value"), "metric": cell.get("data-metric")}
        for cell in row
    ]


def main():
    root = tree.parse(sys.argv[1]).getroot()
    every = list(root.iter())
    ids = [element.get("id") for element in every if element.get("id")]
    svgs = [element for element in every if element.tag == SVG + "svg" and element.get("role")]
    scripts = [element.text for element in root.iter(XHTML + "script")]
    policy = [meta.get("content") for meta in root.iter(XHTML + "meta") if meta.get("http-equiv")]
    allowed = re.search("'sha256-([^']*)'", policy[0]).group(1)
    table = next((t for t in root.iter(XHTML + "table") if t.get("id") == "all-trials"), None)
    rows = list(table.iter(XHTML + "tr")) if table is not None else []
    json.dump(
        {
            "title": text_of(root.find(f".//{XHTML}title")),
            "text": text_of(root.find(XHTML + "body")),
            "tags": sorted({element.tag.split("}")[1] for element in every}),
            "attributes": sorted({name for element in every for name in element.attrib}),
            "links": sorted(
                {
                    value
                    for element in every
                    for name, value in element.attrib.items()
                    if name in ("href", "src", "action", "data") and not value.startswith("#")
                }
            ),
            "repeated_ids": sorted({i for i in ids if ids.count(i) > 1}),
            "plots": [
                {"id": figure.get("id"), "text": text_of(figure)}
                for figure in root.iter(XHTML + "figure")
            ],
            "svgs_without_names": [
                svg.get("aria-describedby")
                for svg in svgs
                if not svg.get("aria-label") or svg.get("aria-describedby") not in ids
            ],
            "num_scripts": len(scripts),
            "script_is_allowed": [
                base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() == allowed
                for script in scripts
            ],
            "header": cells_of(rows[0]) if rows else [],
            "rows": {row.get("id"): cells_of(row) for row in rows[1:]},
            "pre": [pre.text for pre in root.iter(XHTML + "pre")],
        },
        sys.stdout,
    )


main()
