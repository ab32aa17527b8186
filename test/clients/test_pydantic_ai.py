"""pydantic-ai: an agent with a tool and with a typed result, over chat completions, responses and Anthropic's API."""
import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider


class Person(BaseModel):
    name: str
    age: int


@pytest.fixture(params=["chat", "responses", "anthropic"])
def model(server, request):
    if request.param == "anthropic":
        return AnthropicModel("qwen", provider=AnthropicProvider(api_key=server.key, base_url=server.url))
    kind = OpenAIChatModel if request.param == "chat" else OpenAIResponsesModel
    return kind("qwen", provider=OpenAIProvider(base_url=server.v1, api_key=server.key))


def test_text(model):
    done = Agent(model, model_settings={"temperature": 0, "max_tokens": 12}).run_sync("Reply with one word: the colour of the sky?")
    assert done.output and done.usage.output_tokens > 0


def test_typed(model):
    if isinstance(model, AnthropicModel):
        pytest.skip("pydantic-ai knows by name which of Anthropic's models take a schema; its tools are tested below")
    agent = Agent(model, output_type=NativeOutput(Person), model_settings={"temperature": 0, "max_tokens": 100})
    assert agent.run_sync("Ada is 36 years old.").output.age == 36


def test_tool_output(model):
    agent = Agent(model, output_type=Person, model_settings={"temperature": 0, "max_tokens": 200}, retries=2)
    assert agent.run_sync("Ada is 36 years old.").output.age == 36
