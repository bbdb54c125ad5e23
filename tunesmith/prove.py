"""Prove an exported folder, in a process of its own: `python -m tunesmith.prove CLAIM.json`.

The claim says where the folder is, which sequences were run through the trainer's weights, and what
came out. Here the folder alone is read, by a forward pass written apart from the engines in plain
numpy (`models.reference`), and by transformers where it is installed. Nothing of the trainer's
memory, code or libraries takes part, so what agrees here was really written.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tunesmith.models import reference

Logits = Callable[[np.ndarray], np.ndarray]
Greedy = Callable[[np.ndarray, int, list[int]], list[int]]


def main(claim_path: Path) -> None:
    """Check the claim; print as JSON what each reader found: largest gap and greedy text."""
    claim = json.loads(claim_path.read_text(encoding="utf-8"))
    readers = {"numpy": _numpy_reader, "transformers": _transformers_reader}
    print(json.dumps({name: _check(claim, readers[name]) for name in claim["readers"]}))


def _check(claim: dict[str, Any], reader: Callable[[dict[str, Any]], tuple[Logits, Greedy]]) -> Any:
    logits, greedy = reader(claim)
    said = np.load(claim["logits"])
    gaps, agree, tokens = [], 0, 0
    for number, ids in enumerate(claim["rows"]):
        ours, theirs = said[f"arr_{number}"], logits(np.array(ids))
        gaps.append(float(np.abs(ours - theirs).max()))
        agree += int((ours.argmax(-1) == theirs.argmax(-1)).sum())
        tokens += len(ours)
    start = np.array(claim["greedy"]["prompt"])
    text = greedy(start, claim["greedy"]["max_new_tokens"], claim["greedy"]["stop_ids"])
    return {
        "max_logit_gap": max(gaps),
        "same_likeliest_token": agree / tokens,
        "tokens": tokens,
        "greedy": text,
    }


def _numpy_reader(claim: dict[str, Any]) -> tuple[Logits, Greedy]:
    model = reference.load(claim["model"], claim["adapter"])
    return model.forward, model.greedy


def _transformers_reader(claim: dict[str, Any]) -> tuple[Logits, Greedy]:
    import torch
    import transformers

    answer: Any = transformers.AutoModelForCausalLM.from_pretrained(
        claim["model"], dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    loaded, info = answer
    wrong = {kind: sorted(info[kind]) for kind in ("missing_keys", "unexpected_keys") if info[kind]}
    if wrong:
        raise SystemExit(f"transformers finds wrong keys in {claim['model']}: {wrong}")
    if claim["adapter"]:
        import peft

        loaded = peft.PeftModel.from_pretrained(loaded, claim["adapter"])
    model = loaded.eval()

    @torch.no_grad()
    def logits(ids: np.ndarray) -> np.ndarray:
        return model(input_ids=torch.tensor(ids)[None], use_cache=False).logits[0].numpy()

    @torch.no_grad()
    def greedy(ids: np.ndarray, max_new_tokens: int, stop_ids: list[int]) -> list[int]:
        prompt = torch.tensor(ids)[None]
        out = model.generate(
            input_ids=prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            eos_token_id=stop_ids,
            pad_token_id=0,
        )
        made = out[0, len(ids) :].tolist()
        return made[:-1] if made and made[-1] in stop_ids else made

    return logits, greedy


if __name__ == "__main__":
    main(Path(sys.argv[1]))
