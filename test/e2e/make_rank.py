"""Makes test/data/rank: a tiny cross-encoder (the tests' bert with a head), and what PyTorch says of four pairs."""
import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForSequenceClassification

DATA = Path(__file__).resolve().parents[1] / "data"
QUERY, DOCUMENTS = "bread mill", ["corn", "a mill", "bread mill", "xyz"]
LETTERS = [chr(c) for c in range(97, 123)]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *("##" + c for c in LETTERS), "."]
WORDS += [f"[unused{i}]" for i in range(64 - len(WORDS))]


def ids(text):
    return [WORDS.index(("##" if i else "") + c) for word in text.split() for i, c in enumerate(word)]


def main():
    config = BertConfig.from_pretrained(DATA / "arch/bert", num_labels=1)
    model = BertForSequenceClassification(config).float().eval()
    weights = {**model.state_dict(), **{"bert." + k: v.float() for k, v in load_file(DATA / "arch/bert/model.safetensors").items()}}
    weights = {k: v for k, v in weights.items() if k in model.state_dict()}
    torch.manual_seed(7)
    for name in ("bert.pooler.dense.weight", "bert.pooler.dense.bias", "classifier.weight", "classifier.bias"):
        weights[name] = (torch.randn_like(weights[name]) / 2).bfloat16().float()
    model.load_state_dict(weights)
    out = DATA / "rank"
    out.mkdir(exist_ok=True)
    save_file({k: v.bfloat16().contiguous() for k, v in weights.items()}, out / "model.safetensors")
    (out / "config.json").write_text(json.dumps({**json.loads((DATA / "arch/bert/config.json").read_text()),
                                                 "architectures": ["BertForSequenceClassification"]}, indent=1) + "\n")
    (out / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (out / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "do_lower_case": true}\n')
    scores = []
    for document in DOCUMENTS:
        pair = torch.tensor([[2, *ids(QUERY), 3, *ids(document), 3]])
        logits = model(input_ids=pair, token_type_ids=torch.zeros_like(pair)).logits
        scores.append(torch.sigmoid(logits).item())
    (out / "ref.json").write_text(json.dumps({"query": QUERY, "documents": DOCUMENTS, "scores": scores}, indent=1) + "\n")


main()
