"""Translates standard input with the exported model in the current folder; prints ids, scores and texts as JSON.

The arguments are the number of beams, and the file with source ids for which logits are printed, if given.
"""

import json
import sys

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

torch.set_num_threads(1)  # those of two models waiting for each other take minutes
beams = int(sys.argv[1])
tokenizer, model = AutoTokenizer.from_pretrained("."), AutoModelForSeq2SeqLM.from_pretrained(".")
results = []
for line in sys.stdin.read().splitlines():
    ids = tokenizer(line)["input_ids"]
    written = model.generate(torch.tensor([ids]), num_beams=beams, length_penalty=0.0)[0, 1:].tolist()
    source, target = torch.tensor([ids]), torch.tensor([[model.config.decoder_start_token_id, *written[:-1]]])
    logits = model(input_ids=source, decoder_input_ids=target).logits[0, -1].tolist()
    text = tokenizer.decode(written, skip_special_tokens=True)
    results.append({"source": ids, "target": written, "text": text, "logits": logits})
print(json.dumps(results))
