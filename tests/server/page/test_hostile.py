"""What a model writes stays text, whatever it writes."""

import re

import pytest

from strata.server.page.files import PAGE_FILES

HOSTILE = """<img src=x onerror="document.title='owned'"> <script>document.title='owned'</script>
[click](javascript:document.title='owned') [data](data:text/html,<script>alert(1)</script>)
![picture](http://elsewhere.example/x.png) <svg onload="document.title='owned'">

# <b onmouseover=alert(1)>head</b>

* <iframe src="javascript:document.title='owned'"></iframe>

| <style>*{display:none}</style> | b |
|---|---|
| <a href="http://elsewhere.example">x</a> | **<u>bold</u>** |

```html"><script>document.title='owned'</script>
</code></pre><script>document.title='owned'</script>
```
[fine](https://example.org/a_b?c=d&e=<x>)
"""
SINKS = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|setAttribute\(\"on|srcdoc"
)
ALLOWED = {
    "P",
    "BR",
    "A",
    "H3",
    "UL",
    "LI",
    "TABLE",
    "THEAD",
    "TBODY",
    "TR",
    "TH",
    "TD",
    "STRONG",
    "DIV",
    "PRE",
    "CODE",
    "BUTTON",
}


def test_a_hostile_answer_stays_text(scripted, tab, say):
    deltas = [{"content": HOSTILE[i : i + 7]} for i in range(0, len(HOSTILE), 7)]
    call = {
        "index": 0,
        "id": "c",
        "function": {"name": "<img src=x onerror=alert(1)>", "arguments": "<script>"},
    }
    server = scripted(
        [{"reasoning_content": "<script>document.title='owned'</script>"}, *deltas], [{"tool_calls": [call]}]
    )
    page = tab(server.port)
    say(page, "<script>document.title='owned'</script>")
    page.wait_for_selector("text=Regenerate")
    body = page.locator("article.assistant .body")
    tags = set(
        body.evaluate(
            "b => [...b.querySelectorAll(':scope > :not(details) *, :scope > :not(details)')].map(e => e.tagName)"
        )
    )
    assert tags <= ALLOWED
    assert page.title() == "Strata"
    for piece in (
        "<img src=x onerror=",
        "<script>document.title='owned'</script>",
        "<iframe src=",
        "(javascript:document.title='owned')",
        "<style>*{display:none}</style>",
    ):
        assert piece in body.text_content()
    assert body.evaluate("b => [...b.querySelectorAll('a')].map(a => a.href)") == [
        "http://elsewhere.example/x.png",  # a picture is a link, which asks nothing by itself
        "https://example.org/a_b?c=d&e=%3Cx%3E",
    ]
    assert (
        body.evaluate(
            "b => [...b.querySelectorAll('*')].flatMap(e => [...e.attributes]).filter(a => /^on/.test(a.name)).length"
        )
        == 0
    )
    say(page, "again")
    page.wait_for_selector("details.call")
    assert "<img src=x onerror=alert(1)>" in page.locator("details.call summary").text_content()


def test_the_policy_stops_what_would_slip_through(scripted, browser):
    """The second line of defence, by itself: a planted script that makes markup of text is refused."""
    page = browser.new_page()
    page.goto(f"http://127.0.0.1:{scripted().port}/")
    for planted in ("document.body.innerHTML = '<b>x</b>'", "eval('1')", "document.write('x')"):
        with pytest.raises(Exception, match=r"Trusted|unsafe-eval|Content Security"):
            page.evaluate(f"() => {{ {planted} }}")
    assert page.evaluate("fetch('http://127.0.0.1:1/').then(() => 'went', (e) => e.name)") == "TypeError"
    assert (
        page.evaluate("""() => { const s = document.createElement('div'); s.setAttribute('style', 'color: red');
        document.body.append(s); return s.style.color }""")
        == ""
    )
    page.close()


def test_no_source_makes_markup_of_text():
    scripts = {path: file.content.decode() for path, file in PAGE_FILES.items() if path.endswith(".js")}
    assert len(scripts) >= 5
    assert [path for path, text in scripts.items() if SINKS.search(text)] == []
    assert SINKS.search("x.innerHTML = text"), "the search can find something"


def test_the_page_names_no_other_place():
    for path, file in PAGE_FILES.items():
        text = file.content.decode().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"(?:https?:)?//[\w-]+\.\w", text), path


def test_patterns_do_not_hang(scripted, tab, say):
    """Answers made to make patterns try everything, each a hundred thousand characters."""
    n = 100_000
    evil = ["`" * i + " " for i in range(1, 440)]
    answers = [
        "".join(evil),
        "*a " * (n // 3),
        "[" * n,
        "_a " * (n // 3),
        "> " * (n // 2),
        "- " * (n // 2),
        "|" * n + "\n|-" + "|" * n,
        "~~a " * (n // 4),
        ("> " * 60 + "x\n") * 800,
        "#" + " " * n + "x #",
    ]
    page = tab(scripted(*[[{"content": a}] for a in answers]).port)
    for _ in answers:
        say(page, "go")
        page.wait_for_selector("article.assistant button >> text=Regenerate")
        page.click("#new")
        page.wait_for_function("document.querySelectorAll('article').length === 0")
