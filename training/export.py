"""A Hugging Face checkpoint from packed weights: usage: python -m training.export WEIGHTS_DIR TOKENIZER OUT

Convert it with `strata convert` (training/README.md).
"""

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from training.config import ModelConfig
from training.packed import read_packed
from training.tokenizer import END_OF_TEXT, TURN_END

TEMPLATE = (
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
)


def export(weights: Path, tokenizer: Path, out: Path) -> None:
    """config.json, model.safetensors, tokenizer and chat template."""
    out.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.contiguous() for name, tensor in read_packed(weights).items()}
    save_file(tensors, out / "model.safetensors")
    config = ModelConfig().transformers() | {
        "architectures": ["Qwen4ExpForCausalLM"],
        "torch_dtype": "float32",
    }
    settings = {
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "bos_token": END_OF_TEXT,
        "add_bos_token": False,
    }
    _write(out / "config.json", config)
    _write(out / "tokenizer_config.json", settings)
    _write(out / "generation_config.json", {"temperature": 0.8, "top_p": 0.95, "top_k": 40})
    (out / "chat_template.jinja").write_text(TEMPLATE)
    shutil.copyfile(tokenizer, out / "tokenizer.json")
    count = sum(t.numel() for t in tensors.values() if t.dtype == torch.float32)
    print(f"{out}: {len(tensors)} tensors, {count / 1e6:.2f} M parameters")


def _write(path: Path, values: dict[str, object]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("weights", "tokenizer", "out"):
        parser.add_argument(name, type=Path)
    given = parser.parse_args()
    export(given.weights, given.tokenizer, given.out)


if __name__ == "__main__":
    main()
