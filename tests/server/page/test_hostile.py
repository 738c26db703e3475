"""What a model writes stays text, whatever it writes."""

import re

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


PLANTED = """
const tried = [() => { document.body.innerHTML = "<b>x</b>"; }, () => eval("1"), () => document.write("x"),
  () => new Function("1"),
  () => { document.querySelector("a").setAttribute("onclick", "1"); },
  () => { document.createElement("script").textContent = "1"; }];
const names = tried.map((run) => { try { run(); return "went"; } catch (error) { return error.name; } });
const elsewhere = await fetch("http://localhost:1/").then(() => "went", (error) => error.name);
const blocked = new Promise((resolve) => document.addEventListener("securitypolicyviolation",
  (e) => { if (e.blockedURI.endsWith("x.png")) resolve(e.effectiveDirective); }));
document.body.append(Object.assign(document.createElement("img"), { src: "http://localhost:1/x.png" }));
window.found = [...names, elsewhere, await blocked];
"""


def test_the_policy_stops_what_would_slip_through(scripted, browser, until):
    """The second line of defence, by itself: a script of the page's own that does what none of them may."""
    page = browser.new_page()
    page.route("**/page/main.js", lambda route: route.fulfill(body=PLANTED, content_type="text/javascript"))
    page.goto(f"http://127.0.0.1:{scripted().port}/")
    until(page, "window.found !== undefined")
    *markup, elsewhere, picture = page.evaluate("window.found")
    page.close()
    assert "went" not in markup and (elsewhere, picture) == ("TypeError", "img-src"), markup


def test_no_source_makes_markup_of_text():
    scripts = {path: file.content.decode() for path, file in PAGE_FILES.items() if path.endswith(".js")}
    assert len(scripts) >= 5
    assert [path for path, text in scripts.items() if SINKS.search(text)] == []
    assert SINKS.search("x.innerHTML = text"), "the search can find something"


def test_the_page_names_no_other_place():
    for path, file in PAGE_FILES.items():
        text = file.content.decode().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"(?:https?:)?//[\w-]+\.\w", text), path


def test_patterns_do_not_hang(scripted, tab, say, until):
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
        until(page, "document.querySelectorAll('article').length === 0")
