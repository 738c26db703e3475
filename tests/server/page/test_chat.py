"""The chat in a browser: what is streamed, shown, stopped, made again, kept."""

import json
import threading

import pytest

MARKDOWN = """## Title

Some **bold** and `code`

1. one
2. two
   - inner

```python
if x < 1:
    pass
```
> quoted

| a | b |
|---|---|
| 1 | 2 |
"""


def texts(page, selector):
    return page.locator(selector).all_text_contents()


def test_markdown_reasoning_and_code(scripted, tab, say):
    server = scripted(
        [
            {"role": "assistant"},
            {"reasoning_content": "let me "},
            {"reasoning_content": "see"},
            *({"content": c} for c in MARKDOWN),
        ]
    )
    page = tab(server.port)
    say(page, "hello")
    page.wait_for_selector("text=Regenerate")
    body = "article.assistant .body"
    assert texts(page, f"{body} h4") == ["Title"]
    assert texts(page, f"{body} strong") == ["bold"]
    assert texts(page, f"{body} pre code") == ["if x < 1:\n    pass"]
    assert texts(page, f"{body} > ol > li > ul > li") == ["inner"]
    assert texts(page, f"{body} blockquote p") == ["quoted"]
    assert texts(page, f"{body} td") == ["1", "2"]
    fold = page.locator("details.reasoning")
    assert not fold.evaluate("d => d.open")
    fold.locator("summary").click()
    assert fold.locator("div").inner_text() == "let me see"
    assert server.bodies[0]["messages"] == [{"role": "user", "content": "hello"}]


def test_tool_calls_are_shown_and_answered(scripted, tab, say):
    def part(text, **first):
        return {
            "tool_calls": [
                {
                    "index": 0,
                    **first,
                    "function": {**({"name": "weather"} if first else {}), "arguments": text},
                }
            ]
        }

    server = scripted([part("", id="call_1"), part('{"city": '), part('"Ulm"}')], [{"content": "It rains."}])
    page = tab(server.port)
    page.click("#wishes summary")
    page.fill("#tools", '[{"type": "function", "function": {"name": "weather"}}]')
    say(page, "weather?")
    page.wait_for_selector("text=Regenerate")
    assert texts(page, "details.call summary") == ["Call of weather"]
    assert json.loads(texts(page, "details.call code")[0]) == {"city": "Ulm"}
    assert page.get_attribute("#message", "placeholder") == "Result of weather"
    say(page, "rain")
    page.wait_for_selector("text=It rains.")
    assert server.bodies[0]["tools"][0]["function"]["name"] == "weather"
    _asked, called, result = server.bodies[1]["messages"]
    assert called["tool_calls"][0] == {
        "id": "call_1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Ulm"}'},
    }
    assert result == {"role": "tool", "tool_call_id": "call_1", "content": "rain"}


def test_stop_keeps_what_came_and_regenerate_asks_again(scripted, tab, say):
    gate = threading.Event()
    server = scripted(
        [{"content": "first part"}, lambda: gate.wait(60), {"content": " never"}], [{"content": "second"}]
    )
    page = tab(server.port)
    say(page, "go")
    page.wait_for_selector("text=first part")
    assert page.is_disabled("#send")
    page.keyboard.press("Escape")
    page.wait_for_selector("text=Regenerate")
    gate.set()
    assert texts(page, "article.assistant .body") == ["first part"]
    page.click("text=Regenerate")
    page.wait_for_selector("text=second")
    assert server.bodies[1]["messages"] == server.bodies[0]["messages"]


def test_conversations_are_kept_in_the_browser(scripted, tab, say):
    page = tab(scripted([{"content": "kept answer"}], [{"content": "other"}], [{"content": "edited"}]).port)
    say(page, "kept question")
    page.wait_for_selector("text=Regenerate")
    page.reload()
    page.wait_for_selector("text=kept answer")
    page.click("#new")
    assert page.locator("article").count() == 0
    say(page, "another")
    page.wait_for_selector("text=Regenerate")
    assert texts(page, "#conversations .open") == ["another", "kept question"]
    page.click("#conversations >> text=kept question")
    page.click("text=Edit")
    assert page.input_value("#message") == "kept question"
    say(page, "edited question")
    page.wait_for_selector("article >> text=edited")
    page.click("[aria-label='Delete: another']")
    assert texts(page, "#conversations .open") == ["edited question"]
    page.evaluate("localStorage.setItem('strata.conversations', '{broken')")
    page.reload()
    assert page.locator("#conversations li").count() == 0


def test_a_reload_keeps_what_came(scripted, tab, say):
    gate = threading.Event()
    page = tab(scripted([{"content": "first part"}, lambda: gate.wait(60)], [lambda: gate.wait(60)]).port)
    say(page, "go")
    page.wait_for_selector("text=first part")
    assert page.locator("text=Regenerate").count() == 0, "it is still being made"
    page.reload()
    page.wait_for_selector("text=Regenerate")
    assert texts(page, "article.assistant .body p") == ["first part"]
    say(page, "and now")
    page.wait_for_selector("text=Waiting for the model")
    page.reload()
    page.wait_for_selector("text=and now")
    assert page.locator("article").count() == 3, "of the second answer nothing came"
    gate.set()


def test_tabs_lose_nothing_of_one_another(scripted, tab, say):
    first = tab(scripted(*([{"content": f"answer {i}"}] for i in range(4))).port)
    second = first.context.new_page()
    second.goto(first.url)
    for page, text in ((first, "from the first"), (second, "from the second")):
        say(page, text)
        page.wait_for_selector("text=Regenerate")
    first.wait_for_selector("#conversations >> text=from the second")
    first.click("#conversations >> text=from the second")
    first.wait_for_selector("text=answer 1")
    say(first, "and more")
    second.wait_for_selector("article >> text=answer 2")
    assert texts(second, "article.user .body") == ["from the second", "and more"]
    first.click("[aria-label='Delete: from the first']")
    second.wait_for_selector("[aria-label='Delete: from the first']", state="detached")
    say(second, "once more")
    second.wait_for_selector("article >> text=answer 3")
    first.reload()
    assert texts(first, "#conversations .open") == ["from the second"]
    assert len(texts(first, "article")) == 6


def test_what_is_replaced_stays_until_something_comes(scripted, tab, say):
    gate = threading.Event()
    server = scripted(
        [{"content": "one"}], [lambda: gate.wait(60)], [{"content": "two"}], [{"content": "three"}]
    )
    page = tab(server.port)
    say(page, "question")
    page.wait_for_selector("text=Regenerate")
    page.click("text=Regenerate")
    page.wait_for_selector("text=Waiting for the model")
    page.keyboard.press("Escape")
    page.wait_for_selector("article >> text=one")
    gate.set()
    page.fill("#message", "half a thought")
    page.click("text=Edit")
    assert page.input_value("#message") == "question"
    page.reload()
    assert texts(page, "article.assistant .body p") == ["one"], "nothing was sent"
    page.fill("#message", "half a thought")
    page.click("text=Edit")
    page.keyboard.press("Escape")
    assert page.input_value("#message") == "half a thought"
    page.click("#wishes summary")
    page.fill("#tools", "{broken")
    page.click("text=Regenerate")
    page.wait_for_selector("#note >> text=Tools:")
    assert texts(page, "article.assistant .body p") == ["one"]
    page.fill("#tools", "")
    page.click("text=Regenerate")
    page.wait_for_selector("article >> text=two")
    page.click("text=Edit")
    say(page, "another")
    page.wait_for_selector("article >> text=three")
    assert texts(page, "article.user .body") == ["another"]


def test_an_answer_that_a_limit_cut_says_so(scripted, tab, say):
    cut = {"finish_reason": "length"}
    server = scripted([{"content": "There are"}, {**cut}], [{**cut}], [{"content": "whole"}])
    page = tab(server.port)
    say(page, "go")
    page.wait_for_selector("article >> text=Cut off")
    say(page, "again")
    page.wait_for_selector("article:nth-of-type(4) >> text=Cut off")
    assert page.locator("text=Regenerate").count() == 1, "nothing came, and it can be asked for again"
    say(page, "more")
    page.wait_for_selector("article >> text=whole")
    sent = [(m["role"], m["content"]) for m in server.bodies[2]["messages"]]
    assert sent == [("user", "go"), ("assistant", "There are"), ("user", "again"), ("user", "more")]


def test_what_is_kept_damaged_is_left_out(tab, scripted):
    page = tab(scripted().port)
    good = {"id": "1", "messages": [{"role": "user", "content": "hi"}]}
    for bad in (1, {"id": 2}, {**good, "messages": [3]}, {**good, "messages": [{"role": "user"}]}):
        page.evaluate("s => localStorage.setItem('strata.conversations', s)", json.dumps([bad, good]))
        page.reload()
        assert texts(page, "article .body") == ["hi"]


def test_an_answer_goes_on_while_another_conversation_is_shown(scripted, tab, say, until):
    gate = threading.Event()
    page = tab(scripted([{"content": "begun"}, lambda: gate.wait(60), {"content": " and ended"}]).port)
    say(page, "go")
    page.wait_for_selector("text=begun")
    page.click("#new")
    gate.set()
    until(page, "document.getElementById('stop').hidden")
    assert page.locator("article").count() == 0
    page.click("#conversations >> text=go")
    assert texts(page, "article.assistant .body p") == ["begun and ended"]


@pytest.mark.parametrize("width", [1200, 375])
def test_by_keyboard_alone(scripted, tab, width):
    page = tab(scripted([{"content": "fine"}]).port, width)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    page.keyboard.type("hello")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("there")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=Regenerate")
    assert texts(page, "article.user .body") == ["hello\nthere"]
    page.focus("#tab-chat")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "tab-monitor"
    assert page.is_visible("#monitor") and not page.is_visible("#chat")
    page.keyboard.press("ArrowLeft")
    unnamed = """[...document.querySelectorAll('button, input, textarea, select')].filter((e) => !(e.textContent.trim()
        || e.ariaLabel || e.labels?.length)).map((e) => e.id)"""
    assert page.evaluate(unnamed) == []


def test_on_a_phone(scripted, tab, say):
    page = tab(scripted([{"content": "x" * 500 + "\n\n```\n" + "y" * 500 + "\n```"}]).port, width=375)
    say(page, "z" * 300)
    page.wait_for_selector("text=Regenerate")
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    assert not page.is_visible("#conversations")
    page.click("#menu")
    assert page.is_visible("#conversations")
    box = page.locator("#send").bounding_box()
    assert box["x"] + box["width"] <= 375 and box["y"] + box["height"] <= 800
