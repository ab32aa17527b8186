"""Makes test/data/vision/colours: a llava model so small that it fits here, trained to name the colour of an image.

    python test/e2e/make_colours.py     (torch, transformers, Pillow, numpy; a minute)

It answers "red", "green" or "blue", whatever the text asks: nothing but the pixels tells which. The tokenizer is
test/data/vision/tokenizer.json, weights are bf16."""
import json
import random
import shutil
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration, PreTrainedTokenizerFast
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

DATA = Path(__file__).resolve().parent.parent / "data" / "vision"
OUT = DATA / "colours"
IMAGE, SIDE, PATCH = 309, 28, 14
ROWS = (SIDE // PATCH) ** 2
COLOURS = {"red": (215, 30, 40), "green": (40, 190, 60), "blue": (30, 60, 215)}
TEMPLATE = ("{% for m in messages %}{{ m.role }}: {% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}"
            "{% if c.type == 'image' %}{{ '<image>' }}{% else %}{{ c.text }}{% endif %}{% endfor %}{% endif %}\n{% endfor %}"
            "{% if add_generation_prompt %}assistant:{% endif %}")
WORDS = "What colour is this image ? tell me the of picture in one word please describe what you see and answer Hello".split()


def config():
    vision = CLIPVisionConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, image_size=SIDE,
                              patch_size=PATCH, projection_dim=32)
    text = LlamaConfig(hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                       head_dim=16, vocab_size=320, max_position_embeddings=1024, bos_token_id=1, eos_token_id=2, pad_token_id=0,
                       tie_word_embeddings=True)
    return LlavaConfig(vision_config=vision, text_config=text, image_token_index=IMAGE, image_seq_length=ROWS,
                       vision_feature_layer=-2, tie_word_embeddings=True)


def picture(name):
    """Of any size, noisy, brighter or darker."""
    w, h = random.choice([(1, 1), (8, 8), (28, 28), (40, 20), (17, 60), (64, 64)])
    a = np.array(COLOURS[name]) * random.uniform(0.6, 1.15) + np.random.normal(0, random.choice([0, 8, 20]), (h, w, 3))
    return Image.fromarray(np.clip(a, 0, 255).astype(np.uint8))


def sample(tokenizer, processor):
    name = random.choice(list(COLOURS))
    text = " ".join(random.choices(WORDS, k=random.randint(1, 12)))
    system = [{"role": "system", "content": " ".join(random.choices(WORDS, k=4))}] if random.random() < 0.3 else []
    parts = [{"type": "image"}, {"type": "text", "text": text}]
    random.shuffle(parts)
    turns = system + [{"role": "user", "content": parts}]
    if random.random() < 0.3:  # and once more
        turns += [{"role": "assistant", "content": " " + name}, {"role": "user", "content": text}]
    prompt = tokenizer.apply_chat_template(turns, chat_template=TEMPLATE, tokenize=False, add_generation_prompt=True)
    ids = tokenizer(prompt.replace("<image>", "<image>" * ROWS)).input_ids
    answer = tokenizer(" " + name).input_ids + [2]
    return ids, answer, processor(picture(name), return_tensors="pt").pixel_values[0]


def batch(tokenizer, processor, size):
    rows = [sample(tokenizer, processor) for _ in range(size)]
    n = max(len(i) + len(a) for i, a, _ in rows)
    ids, labels = torch.zeros(size, n, dtype=torch.long), torch.full((size, n), -100)
    mask = torch.zeros(size, n, dtype=torch.long)
    for k, (i, a, _) in enumerate(rows):
        ids[k, :len(i) + len(a)] = torch.tensor(i + a)
        labels[k, len(i):len(i) + len(a)] = torch.tensor(a)
        mask[k, :len(i) + len(a)] = 1
    return dict(input_ids=ids, labels=labels, attention_mask=mask, pixel_values=torch.stack([p for _, _, p in rows]))


def main():
    random.seed(21), np.random.seed(21), torch.manual_seed(21)
    torch.set_num_threads(1)  # the model is tiny
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(DATA / "tokenizer.json"), eos_token="</s>", bos_token="<s>")
    processor = CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE})
    model = LlavaForConditionalGeneration(config())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(500):
        loss = model(**batch(tokenizer, processor, 24)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(step, float(loss), flush=True)
    model = model.to(torch.bfloat16).eval()
    model.save_pretrained(OUT)
    (OUT / "generation_config.json").unlink(missing_ok=True)
    shutil.copy(DATA / "tokenizer.json", OUT)
    (OUT / "preprocessor_config.json").write_text(json.dumps(processor.to_dict(), indent=1, default=str) + "\n")
    (OUT / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>",
                                                           "eos_token": "</s>", "pad_token": "<pad>", "add_bos_token": False,
                                                           "chat_template": TEMPLATE}) + "\n")
    wrong = 0
    with torch.no_grad():
        for _ in range(200):
            ids, answer, pixels = sample(tokenizer, processor)
            logits = model(input_ids=torch.tensor([ids + answer]), pixel_values=pixels[None].to(torch.bfloat16)).logits[0]
            wrong += logits[len(ids) - 1:-1].argmax(-1).tolist() != answer
    print("wrong", wrong, "of 200")


if __name__ == "__main__":
    main()
