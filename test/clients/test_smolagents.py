"""smolagents: a model's call with stop words, with tools and with a schema; an agent's step."""
from smolagents import ChatMessage, OpenAIServerModel, ToolCallingAgent, tool


@tool
def get_weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: its name
    """
    return f"It is sunny in {city}."


def test_model(server):
    model = OpenAIServerModel(model_id="qwen", api_base=server.v1, api_key=server.key, temperature=0, max_tokens=120)
    ask = [ChatMessage(role="user", content=[{"type": "text", "text": "Write: one two three four"}])]
    assert "three" not in model.generate(ask, stop_sequences=["three"]).content
    called = model.generate([ChatMessage(role="user", content=[{"type": "text", "text": "The weather in Paris?"}])],
                            tools_to_call_from=[get_weather])
    assert len(called.tool_calls) == 1 and called.tool_calls[0].function.name == "get_weather"


def test_agent(server):
    model = OpenAIServerModel(model_id="qwen", api_base=server.v1, api_key=server.key, temperature=0, max_tokens=200)
    agent = ToolCallingAgent(tools=[get_weather], model=model, max_steps=2, verbosity_level=0)
    agent.run("What is the weather in Paris?")
    steps = [s for s in agent.memory.steps if getattr(s, "tool_calls", None)]
    assert steps and not any(s.error for s in steps[:1])
