"""Two more real models behind the server. They are large: fetched by hand, and used where they lie."""

import openai
import pytest
from fetch_model import DEFAULT_DIR, MODELS

from conftest import running

QUESTIONS = {
    "北京": [{"role": "user", "content": "北京是哪个国家的首都？请用中文回答。"}],
    "code": [{"role": "user", "content": "Write a Python function that adds two numbers."}],
}


def cached(name):
    path = DEFAULT_DIR / MODELS[name].file
    if not path.is_file():
        pytest.skip(f"{path.name} is not in .cache: python scripts/fetch_model.py {name}")
    return path
