"""Two more real models behind the server. They are large: fetched by name when wanted, and used where they lie."""

import openai
import pytest
from fetch_model import DEFAULT_DIR, MODELS


@pytest.fixture
def client_of(serving):
    """An official client of a server for a model in the cache."""

    def start(name):
        path = DEFAULT_DIR / MODELS[name].file
        if not path.is_file():
            pytest.skip(f"{path.name} is not in {DEFAULT_DIR.name}: run scripts/fetch_model.py {name}")
        server = serving(path, max_model_len=512, threads=2)
        return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none")

    return start


def chat(client, question):
    """The answer to a question, whole and streamed."""
    asked = {"model": "x", "messages": [{"role": "user", "content": question}], "temperature": 0}
    whole = client.chat.completions.create(**asked, max_tokens=48).choices[0].message.content
    stream = client.chat.completions.create(**asked, max_tokens=48, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == whole
    return whole


def test_qwen_answers_in_the_language_of_the_question(client_of):
    with client_of("qwen2.5-coder-0.5b") as client:
        for question in ("北京", "北京是哪个国家的首都"):
            answer = chat(client, question)
            assert "北京" in answer
            chinese = sum("\u4e00" <= c <= "\u9fff" for c in answer)
            assert chinese > 0.8 * len(answer), answer
        assert "中华人民共和国" in answer
        code = chat(client, "Write a Python function that adds two numbers. Only code.")
        assert "def " in code and "return a + b" in code


def test_gemma_continues_what_it_is_given(client_of):
    """The file is of the base model and has no chat template, which a chat request is told."""
    with client_of("gemma-3-270m") as client:
        asked = {"model": "x", "temperature": 0, "max_tokens": 12}
        for prompt, expected in (
            ("The three primary colours are red,", " yellow and blue."),
            ("2, 4, 6, 8,", " 10, 12, 14,"),
        ):
            whole = client.completions.create(prompt=prompt, **asked).choices[0].text
            assert whole.startswith(expected)
            stream = client.completions.create(prompt=prompt, stream=True, **asked)
            assert "".join(chunk.choices[0].text for chunk in stream) == whole
        with pytest.raises(openai.BadRequestError, match="no chat template"):
            chat(client, "Hello")
