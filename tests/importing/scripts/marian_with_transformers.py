"""Reads a JSON object with a folder, lines, tags before them, and beam sizes, and prints what transformers computes.

With "save", the model is first written there, in the type "dtype", pickled if "pickled" is true.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from transformers import MarianMTModel, MarianTokenizer

torch.set_num_threads(1)
asked = json.load(sys.stdin)
folder = Path(asked["folder"])
if "save" in asked:
    new = Path(asked["save"])
    model = MarianMTModel.from_pretrained(folder, dtype=getattr(torch, asked["dtype"]))
    model.save_pretrained(new)
    if asked["pickled"]:
        (new / "model.safetensors").unlink()
        torch.save(model.state_dict(), new / "pytorch_model.bin")
    for name in ("vocab.json", "source.spm", "target.spm", "tokenizer_config.json"):
        shutil.copy(folder / name, new)
    folder = new
model = MarianMTModel.from_pretrained(folder, dtype=torch.float32).eval()
tokenizer = MarianTokenizer.from_pretrained(folder)
unknown, results = tokenizer.unk_token_id, []
for line, target in zip(asked["lines"], asked["targets"], strict=True):
    ids = tokenizer(asked["tag"] + line)["input_ids"]
    of_target = tokenizer(text_target=target)["input_ids"]
    read = [model.config.decoder_start_token_id, *of_target[:-1]]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids]), decoder_input_ids=torch.tensor([read])).logits[0, -1]
    result = {"source": ids, "target": of_target, "logits": [round(value, 6) for value in logits.tolist()], "beams": {}}
    for beams, penalty in asked["searches"]:
        written = model.generate(
            torch.tensor([ids]),
            num_beams=beams,
            length_penalty=penalty,
            max_length=min(2 * len(ids) + 10, model.config.max_position_embeddings) + 1,
            early_stopping="never" if beams > 1 else False,
            suppress_tokens=[unknown],
            output_scores=True,
            return_dict_in_generate=True,
        )
        score = written.sequences_scores[0].item() if beams > 1 else None
        tokens = written.sequences[0, 1:].tolist()
        text = tokenizer.decode(tokens, skip_special_tokens=True)
        result["beams"][str(beams)] = {"tokens": tokens, "score": score, "text": text}
    results.append(result)
print(json.dumps(results))
