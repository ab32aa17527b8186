"""llama-index: complete, chat, streams, structured prediction, function calls."""
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel


class Person(BaseModel):
    """A person."""
    name: str
    age: int


def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


def test_llm(server):
    llm = OpenAILike(model="qwen", api_base=server.v1, api_key=server.key, is_chat_model=True, is_function_calling_model=True,
                     context_window=8192, temperature=0, max_tokens=60)
    ask = [ChatMessage(role="user", content="Reply with one word: what colour is the sky?")]
    said = llm.chat(ask).message.content
    assert said and "".join(p.delta for p in llm.stream_chat(ask)) == said
    assert llm.complete("Say hello.").text
    assert llm.as_structured_llm(Person).complete("Ada is 36 years old.").raw.age == 36
    done = llm.chat_with_tools([FunctionTool.from_defaults(get_weather)], user_msg="What is the weather in Paris?", tool_required=True)
    calls = llm.get_tool_calls_from_response(done)
    assert len(calls) == 1 and calls[0].tool_name == "get_weather"
