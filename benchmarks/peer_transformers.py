"""Answers prompts with transformers' generate (bf16, greedy); one JSON line in, one out. Started by cpu_systems.py."""

import json
import sys

import torch
import transformers
from transformers import AutoModelForCausalLM


def main() -> None:
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
    model.eval()
    print(json.dumps({"ready": f"transformers {transformers.__version__}"}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        prompt = torch.tensor([request["prompt"]])
        count = request["max_tokens"]
        with torch.inference_mode():
            out = model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=count,
                min_new_tokens=count,
                do_sample=False,
                pad_token_id=0,
            )
        print(json.dumps({"tokens": out[0, prompt.shape[1] :].tolist()}), flush=True)


if __name__ == "__main__":
    main()
