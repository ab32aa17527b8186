"""dspy: a signature by its chat adapter and by its JSON adapter."""
import dspy
import pytest


class Extract(dspy.Signature):
    """Extract the person's age."""
    text: str = dspy.InputField()
    age: int = dspy.OutputField()


@pytest.mark.parametrize("adapter", [dspy.ChatAdapter, dspy.JSONAdapter])
def test_predict(server, adapter):
    lm = dspy.LM("openai/qwen", api_base=server.v1, api_key=server.key, temperature=0, max_tokens=200, cache=False)
    with dspy.context(lm=lm, adapter=adapter()):
        assert dspy.Predict(Extract)(text="Ada is 36 years old.").age == 36
