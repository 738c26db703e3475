"""The tokenizer: byte-level BPE with the family's cuts and special tokens."""

from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from training.text import documents

VOCAB_SIZE = 12_032
# The cuts and special tokens of the family (its published tokenizer.json); ids follow the ordinary tokens.
QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
END_OF_TEXT, TURN_END = "<|endoftext|>", "<|im_end|>"
SPECIAL = (
    END_OF_TEXT, "<|im_start|>", TURN_END, "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>",
    "<|video_pad|>", "<|audio_pad|>",
)  # fmt: skip
DEFINED = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
SAMPLE = 3  # every third document is enough to count pairs


def train(directory: Path, output: Path) -> Tokenizer:
    """Learn merges from the training documents and write `tokenizer.json`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN35), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(SPECIAL) - len(DEFINED),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sample(directory), trainer)
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.add_tokens(list(DEFINED))
    tokenizer.save(str(output))
    return tokenizer


def _sample(directory: Path) -> Iterator[str]:
    for number, document in enumerate(documents(directory)):
        if number % SAMPLE == 0 and not document.held_out:
            yield document.text
