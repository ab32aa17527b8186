"""outlines: choices, schemas, regular expressions and grammars through the server."""
from typing import Literal

import openai
import outlines
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int


def test_openai(server):
    model = outlines.from_openai(openai.OpenAI(), "qwen")
    assert model("Reply with one word: the colour of the sky?", max_tokens=8, temperature=0)
    assert Person.model_validate_json(model("Ada is 36 years old.", Person, max_tokens=60, temperature=0)).age == 36


def test_vllm(server):
    model = outlines.from_vllm(openai.OpenAI(), "qwen")
    assert model("Is the sky blue?", Literal["yes", "no"], max_tokens=8, temperature=0) in ("yes", "no")
    assert model("A year:", outlines.types.Regex(r"\d{4}"), max_tokens=8, temperature=0).isdigit()
    assert Person.model_validate_json(model("Ada is 36 years old.", Person, max_tokens=60, temperature=0)).age == 36
