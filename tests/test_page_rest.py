"""The timeline comes to rest. To be put into tests/ as soon as it holds."""

from __future__ import annotations

import pytest

from tests.browser import LOOKS, Server, in_browser
from tests.shown import every_state

FRAMES = """async () => {
    const got = [];
    for (let frame = 0; frame < 8; frame++) {
        await new Promise(requestAnimationFrame);
        got.push([scrollY, document.documentElement.scrollHeight, document.querySelectorAll(".row").length].join());
    }
    return got;
}"""


@pytest.mark.parametrize(("theme", "width"), LOOKS[:2])
@in_browser
def test_a_timeline_comes_to_rest(site: Server, theme: str, width: int) -> None:
    """Nothing happens in the session, so nothing moves: the same place, height and rows in every frame."""
    seq = site.tell(f"rest-{width}", *every_state())
    tab = site.window(theme, width).tab(f"/s/rest-{width}")
    tab.reaches(seq)
    tab.until(lambda: len(set(tab.page.evaluate(FRAMES))) == 1, "a timeline at rest")
    tab.fine()
