"""axe-core's judgement of a page."""

from __future__ import annotations

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Page

WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]


def violations(page: Page) -> list[str]:
    """What breaks WCAG 2.1, level AA: the rule and the places, one line each; all that is folded is opened first."""
    page.evaluate("document.querySelectorAll('main details').forEach(d => d.open = true)")
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE_SCRIPT)
    found = page.evaluate("tags => axe.run(document, {runOnly: {type: 'tag', values: tags}})", WCAG)
    assert len(found["passes"]) > 10, "axe has looked at nothing"
    return [f"{rule['id']}: {', '.join(str(node['target']) for node in rule['nodes'])}" for rule in found["violations"]]
