"""openai-agents: a run with a tool, over chat completions and over responses."""
import asyncio

import openai
import pytest
from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool

called = []


@function_tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    called.append(city)
    return f"It is sunny in {city}."


@pytest.mark.parametrize("kind", [OpenAIChatCompletionsModel, OpenAIResponsesModel])
def test_run(server, kind):
    called.clear()
    model = kind(model="qwen", openai_client=openai.AsyncOpenAI())
    agent = Agent(name="helper", instructions="Answer with the tool's result.", model=model, tools=[get_weather],
                  model_settings=ModelSettings(temperature=0, max_tokens=100, tool_choice="required"))
    done = asyncio.run(Runner.run(agent, "What is the weather in Paris?", max_turns=4))
    calls = [o for o in done.raw_responses[0].output if o.type == "function_call"]
    assert len(calls) == 1 and "Paris" in called and done.final_output


def test_stream(server):
    async def go():
        model = OpenAIChatCompletionsModel(model="qwen", openai_client=openai.AsyncOpenAI())
        agent = Agent(name="helper", instructions="Be brief.", model=model, model_settings=ModelSettings(temperature=0, max_tokens=12))
        done = Runner.run_streamed(agent, "Say hello.")
        kinds = [e.type async for e in done.stream_events()]
        return kinds, done.final_output
    kinds, output = asyncio.run(go())
    assert "raw_response_event" in kinds and output
