"""Makes tiny rerankers, and what PyTorch says of four pairs: test/data/rank (the tests' bert with a head), and in
test/data/rerank a modernbert with a head, and a Qwen3 that answers "yes" or "no"."""
import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (BertConfig, BertForSequenceClassification, ModernBertConfig, ModernBertForSequenceClassification, Qwen3Config,
                          Qwen3ForCausalLM)

DATA = Path(__file__).resolve().parents[1] / "data"
QUERY, DOCUMENTS = "bread mill", ["corn", "a mill", "bread mill", "xyz"]
LETTERS = [chr(c) for c in range(97, 123)]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *("##" + c for c in LETTERS), "."]
WORDS += [f"[unused{i}]" for i in range(64 - len(WORDS))]
QUESTION = ('<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the '
            'answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages '
            'that answer the query\n<Query>: %s\n<Document>: %s<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n')
SIZES = dict(hidden_size=32, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, vocab_size=266)


def write(out, scores):
    (out / "ref.json").write_text(json.dumps({"query": QUERY, "documents": DOCUMENTS, "scores": scores}, indent=1) + "\n")


def ids(text):
    return [WORDS.index(("##" if i else "") + c) for word in text.split() for i, c in enumerate(word)]


def bert():
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
        first, second = [2, *ids(QUERY), 3], [*ids(document), 3]
        types = torch.tensor([[0] * len(first) + [1] * len(second)])
        logits = model(input_ids=torch.tensor([first + second]), token_type_ids=types).logits
        scores.append(torch.sigmoid(logits).item())
    write(out, scores)


def bytes_with(special):
    """A tokenizer of bytes, in which "yes" and "no" are tokens."""
    vocab = {t: i for i, t in enumerate(special + sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = [("y", "e"), ("ye", "s"), ("n", "o")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    t = Tokenizer(models.BPE(vocab, merges))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.add_special_tokens(special)
    return t


def save(model, tokenizer, name, config):
    out = DATA / "rerank" / name
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(11)
    with torch.no_grad():
        for key, p in model.named_parameters():
            flat = "norm" in key and p.dim() == 1
            p.copy_((flat + (0.2 if flat else 0.18) * torch.randn_like(p)).bfloat16().float())
    save_file({k: v.bfloat16().contiguous() for k, v in model.state_dict().items() if k != "lm_head.weight"}, out / "model.safetensors")
    tokenizer.save(str(out / "tokenizer.json"), pretty=False)
    # the length that transformers writes where there is none
    (out / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 10**30, **config}) + "\n")
    (out / "config.json").write_text(json.dumps({**model.config.to_diff_dict(), "architectures": [type(model).__name__]}, indent=1) + "\n")
    return out


def modernbert():
    t = bytes_with(["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]", "[X]", "[Y]"])
    t.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 0), ("[SEP]", 2)])
    model = ModernBertForSequenceClassification(ModernBertConfig(
        **SIZES, num_labels=1, local_attention=8, classifier_pooling="mean", max_position_embeddings=128, pad_token_id=1, cls_token_id=0,
        sep_token_id=2, bos_token_id=0, eos_token_id=2)).float().eval()
    out = save(model, t, "modernbert", {"cls_token": "[CLS]", "sep_token": "[SEP]"})
    write(out, [torch.sigmoid(model(torch.tensor([t.encode(QUERY, d).ids])).logits).item() for d in DOCUMENTS])


def qwen3():
    t = bytes_with(["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<a>", "<b>"])
    model = Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=8, num_key_value_heads=2, max_position_embeddings=1024, tie_word_embeddings=True,
                                         bos_token_id=0, eos_token_id=2)).float().eval()
    out = save(model, t, "tiny-reranker", {"eos_token": "<|im_end|>"})
    scores = []
    for document in DOCUMENTS:
        last = model(torch.tensor([t.encode(QUESTION % (QUERY, document), add_special_tokens=False).ids])).logits[0, -1]
        scores.append(torch.softmax(last[[t.token_to_id("no"), t.token_to_id("yes")]], 0)[1].item())
    write(out, scores)


bert()
modernbert()
qwen3()
