"""instructor: every mode that an OpenAI-like server is asked by, and Anthropic's."""
import anthropic
import instructor
import openai
import pytest
from pydantic import BaseModel, Field


class Person(BaseModel):
    name: str
    age: int = Field(ge=0, le=150)


ASK = [{"role": "user", "content": "Extract: Ada is 36 years old."}]


@pytest.mark.parametrize("mode", ["TOOLS", "TOOLS_STRICT", "JSON", "JSON_SCHEMA", "MD_JSON"])
def test_openai_modes(server, mode):
    client = instructor.from_openai(openai.OpenAI(), mode=getattr(instructor.Mode, mode))
    person = client.chat.completions.create(model="qwen", response_model=Person, messages=ASK, temperature=0, max_tokens=200,
                                            max_retries=1)
    assert person.age == 36 and person.name.startswith("Ada")


def test_partial(server):
    client = instructor.from_openai(openai.OpenAI(), mode=instructor.Mode.JSON_SCHEMA)
    parts = list(client.chat.completions.create_partial(model="qwen", response_model=Person, messages=ASK, temperature=0))
    assert parts[-1].age == 36


def test_anthropic(server):
    client = instructor.from_anthropic(anthropic.Anthropic(), mode=instructor.Mode.ANTHROPIC_TOOLS)
    person = client.messages.create(model="qwen", response_model=Person, messages=ASK, max_tokens=200, max_retries=2)
    assert person.age == 36
