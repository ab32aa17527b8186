"""langchain: its OpenAI, Anthropic and Ollama chat models; tools and structured output."""
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel
import pytest


class Person(BaseModel):
    """A person."""
    name: str
    age: int


@tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


def models(server):
    return {"openai": ChatOpenAI(model="qwen", temperature=0, max_tokens=100),
            "responses": ChatOpenAI(model="qwen", temperature=0, max_tokens=100, use_responses_api=True),
            "anthropic": ChatAnthropic(model="qwen", temperature=0, max_tokens=100),
            "ollama": ChatOllama(model="qwen", temperature=0, num_predict=100, base_url=server.url,
                                 client_kwargs={"headers": {"Authorization": f"Bearer {server.key}"}})}


@pytest.mark.parametrize("name", ["openai", "responses", "anthropic", "ollama"])
def test_chat_model(server, name):
    model = models(server)[name]
    said = model.invoke("Reply with one word: what colour is the sky?")
    assert said.text and said.usage_metadata["output_tokens"] > 0
    assert "".join(p.text for p in model.stream("Reply with one word: what colour is the sky?")) == said.text
    person = model.with_structured_output(Person).invoke("Ada is 36 years old.")
    assert isinstance(person, Person) and person.age == 36
    called = model.bind_tools([get_weather]).invoke("What is the weather in Paris? Use the tool.")
    assert called.tool_calls and called.tool_calls[0]["name"] == "get_weather"


def test_embeddings(server):
    vectors = OpenAIEmbeddings(model="qwen", check_embedding_ctx_length=False).embed_documents(["bread", "mill"])
    assert len(vectors) == 2
