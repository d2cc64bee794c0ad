"""The same DFlash drafter in vLLM and in this engine: accepted tokens a step, on the same prompts, from the same files.

    python benchmarks/vllm_acceptance.py prepare --target FOLDER --drafter FOLDER --out PAIR gsm8k.jsonl ...
    python benchmarks/vllm_acceptance.py vllm --pair PAIR     (in vLLM's environment; needs a GPU)
    python benchmarks/vllm_acceptance.py ours --pair PAIR
    python benchmarks/vllm_acceptance.py same-text --pair PAIR

`prepare` writes the pair in the fully public layout: a drafter without this project's Markov head, its mask embedding
as a row of the target's embedding table, whose vocabulary is padded for it. Greedy, K = 7, 128 new tokens, a batch of
all prompts of a set in vLLM and one request at a time here. The two write slightly different texts, as any two bf16
systems do; `same-text` counts the steps that this drafter needs for the very text that vLLM wrote.
"""

import argparse
import json
from pathlib import Path

PADDING = 64  # vLLM pads vocabularies to a multiple of this


def prepare(args: argparse.Namespace) -> None:
    """Writes PAIR/target, PAIR/drafter and PAIR/prompts.json (token ids by set)."""
    import torch
    from safetensors.torch import load_file, save_file

    from engine.tokenizer import ChatTokenizer
    from space.prompts import read_prompts

    target, drafter = args.out / "target", args.out / "drafter"
    for folder in (target, drafter):
        folder.mkdir(parents=True, exist_ok=True)
    tensors, config = load_file(args.drafter / "model.safetensors"), read_config(args.drafter)
    mask = tensors.pop("mask_embedding")
    tensors = {name: t for name, t in tensors.items() if not name.startswith("markov_head.") and name != "d2t"}
    vocabulary = config["vocab_size"]
    config.pop("draft_vocab_size", None)
    config["vocab_size"] = vocabulary + PADDING
    config["dflash_config"] = {
        "target_layer_ids": config["dflash_config"]["target_layer_ids"],
        "mask_token_id": vocabulary,
    }
    save_file(tensors, drafter / "model.safetensors", metadata={"format": "pt"})
    (drafter / "config.json").write_text(json.dumps(config, indent=2))

    weights, config = load_file(args.target / "model.safetensors"), read_config(args.target)
    table = weights["model.embed_tokens.weight"]
    head = weights.get("lm_head.weight", table)
    weights["lm_head.weight"] = torch.cat((head, torch.zeros(PADDING, table.shape[1], dtype=table.dtype)))
    weights["model.embed_tokens.weight"] = torch.cat((table, mask.expand(PADDING, -1)))
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    config |= {"vocab_size": vocabulary + PADDING, "tie_word_embeddings": False}
    (target / "config.json").write_text(json.dumps(config, indent=2))

    tokenizer = ChatTokenizer(args.target)
    sets = {
        path.stem: [list(tokenizer.encode(p.messages)) for p in read_prompts(str(path))[: args.per_set]]
        for path in args.prompts
    }
    (args.out / "prompts.json").write_text(json.dumps(sets))


def read_config(folder: Path) -> dict:
    """config.json of a checkpoint."""
    return json.loads((folder / "config.json").read_text())


def report(name: str, by_set: dict[str, dict], out: Path) -> None:
    """Prints tau by set and writes everything to PAIR/NAME.json."""
    out.write_text(json.dumps(by_set))
    for set_name, found in by_set.items():
        tau = found["committed"] / found["steps"]
        print(f"RES {name} {set_name} tau {tau:.3f} ({found['committed']} tokens, {found['steps']} steps)", flush=True)


def vllm(args: argparse.Namespace) -> None:
    """Answers the prompts with vLLM and reads its own counters."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=str(args.pair / "target"),
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=2048,
        max_num_seqs=32,
        gpu_memory_utilization=args.memory,
        enable_prefix_caching=False,
        disable_log_stats=False,
        speculative_config={
            "method": "dflash",
            "model": str(args.pair / "drafter"),
            "num_speculative_tokens": args.draft_length,
        },
    )
    sampling = SamplingParams(temperature=0, max_tokens=args.max_tokens, stop_token_ids=[2], detokenize=False)

    def counters() -> dict[str, float]:
        values = {m.name: getattr(m, "value", 0) for m in llm.get_metrics() if "spec_decode" in m.name}
        return {
            "steps": values["vllm:spec_decode_num_drafts"],
            "accepted": values["vllm:spec_decode_num_accepted_tokens"],
        }

    by_set = {}
    for name, prompts in json.loads((args.pair / "prompts.json").read_text()).items():
        before = counters()
        out = llm.generate([{"prompt_token_ids": p} for p in prompts], sampling, use_tqdm=False)
        after = counters()
        steps, accepted = (after[key] - before[key] for key in ("steps", "accepted"))
        by_set[name] = {
            "answers": [list(o.outputs[0].token_ids) for o in out],
            "steps": steps,
            "committed": accepted + steps,
        }
    report("vllm", by_set, args.pair / "vllm.json")


def ours(args: argparse.Namespace) -> None:
    """Answers the prompts with this engine, one at a time."""
    import torch

    from engine.base import Request, Settings
    from engine.drafters.checkpoint import load_drafter_checkpoint
    from engine.loop import Decoder
    from engine.weights.checkpoint import load_checkpoint

    model = load_checkpoint(args.pair / "target")
    decoder = Decoder(model, 2048, load_drafter_checkpoint(args.pair / "drafter", model))
    settings = Settings(drafter="dflash", draft_length=args.draft_length, threads=torch.get_num_threads())
    by_set = {}
    for name, prompts in json.loads((args.pair / "prompts.json").read_text()).items():
        found = [
            decoder.generate(Request(prompt=tuple(p), max_tokens=args.max_tokens, stop_ids=(2,)), settings)
            for p in prompts
        ]
        by_set[name] = {
            "answers": [list(f.tokens) for f in found],
            "steps": sum(len(f.log.accepted) for f in found),
            "committed": sum(len(f.tokens) - 1 for f in found),
        }
    report("ours", by_set, args.pair / "ours.json")


def same_text(args: argparse.Namespace) -> None:
    """Scores this drafter on vLLM's answers: drafts at every position of a finished text tell its steps exactly."""
    import torch

    from engine.drafters.checkpoint import load_drafter_checkpoint
    from engine.drafters.train.evaluate import score
    from engine.drafters.train.target_files import load_target
    from engine.weights.checkpoint import load_checkpoint

    model = load_drafter_checkpoint(args.pair / "drafter", load_checkpoint(args.pair / "target")).model
    target, _ = load_target(args.pair / "target", torch.device("cpu"))
    theirs = json.loads((args.pair / "vllm.json").read_text())
    for name, prompts in json.loads((args.pair / "prompts.json").read_text()).items():
        answers = theirs[name]["answers"]
        tokens = sum(len(answer) - 1 for answer in answers)
        found, wanted = score(model, target, prompts, answers).tau, tokens / theirs[name]["steps"]
        print(f"RES same-text {name} ours {found:.3f} vllm {wanted:.3f} ({found / wanted - 1:+.1%})", flush=True)


def main() -> None:
    """Runs one of the four."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    first = commands.add_parser("prepare")
    first.add_argument("--target", type=Path, required=True)
    first.add_argument("--drafter", type=Path, required=True)
    first.add_argument("--out", type=Path, required=True)
    first.add_argument("--per-set", type=int, default=20)
    first.add_argument("prompts", type=Path, nargs="+")
    first.set_defaults(run=prepare)
    for run in (vllm, ours, same_text):
        command = commands.add_parser(run.__name__.replace("_", "-"))
        command.add_argument("--pair", type=Path, required=True)
        command.add_argument("--max-tokens", type=int, default=128)
        command.add_argument("--draft-length", type=int, default=7)
        command.add_argument("--memory", type=float, default=0.6, help="share of the GPU's memory for vLLM")
        command.set_defaults(run=run)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
