"""Answers prompts with vLLM (AR, or n-gram speculation); one JSON line in, one out. Started by cpu_systems.py."""

import json
import os
import sys


def main() -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM and its children log to standard output
    import vllm

    speculative = None
    if sys.argv[2] == "ngram":
        speculative = {"method": "ngram", "num_speculative_tokens": 6, "prompt_lookup_max": 5, "prompt_lookup_min": 5}
    llm = vllm.LLM(
        model=sys.argv[1],
        dtype="bfloat16",
        max_model_len=2048,
        skip_tokenizer_init=True,
        speculative_config=speculative,
        enable_prefix_caching=False,
        max_num_seqs=1,
    )
    replies.write(json.dumps({"ready": f"vLLM {vllm.__version__}"}) + "\n")
    replies.flush()
    for line in sys.stdin:
        request = json.loads(line)
        sampling = vllm.SamplingParams(
            temperature=0, max_tokens=request["max_tokens"], ignore_eos=True, detokenize=False
        )
        out = llm.generate([{"prompt_token_ids": request["prompt"]}], sampling, use_tqdm=False)
        replies.write(json.dumps({"tokens": list(out[0].outputs[0].token_ids)}) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
