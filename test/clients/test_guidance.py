"""guidance: chat blocks, gen with stops, and JSON by a schema."""
from guidance import assistant, gen, user
from guidance import json as gen_json
from guidance.models import OpenAI
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int


def test_chat(server):
    lm = OpenAI("qwen", api_key=server.key, base_url=server.v1, echo=False)
    with user():
        lm += "Reply with one word: what colour is the sky?"
    with assistant():
        lm += gen("answer", max_tokens=8, temperature=0)
    assert lm["answer"]


def test_json(server):
    lm = OpenAI("qwen", api_key=server.key, base_url=server.v1, echo=False)
    with user():
        lm += "Ada is 36 years old."
    with assistant():
        lm += gen_json("person", schema=Person, temperature=0)
    assert Person.model_validate_json(lm["person"]).age == 36
