"""A chat reads only what is new: each turn goes on from where the last one ended."""

from strata.cli.conversation import Conversation
from strata.cli.model import TextModel
from strata.config import EngineOptions, SamplingOptions


def test_turns_go_on_from_the_live_prefix(smollm2_path):
    model = TextModel(smollm2_path, EngineOptions(max_model_len=512))
    conversation = Conversation(
        model, model.params(SamplingOptions(max_tokens=12), []), [], "Be brief. " * 20
    )
    read = []
    for question in ("What is the capital of France?", "And of Spain?", "And of Italy?"):
        conversation.ask(question)
        read.append(model.engine.stats.prompt_tokens - model.engine.stats.cached_tokens)
    assert read[0] > 64
    assert max(read[1:]) <= 24, "the question, and what the template puts around it"
    model.engine.forget()
    conversation.retry()
    assert model.engine.stats.cached_tokens == 0
