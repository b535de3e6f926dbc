"""HuggingFace's Trainer as its users have it: nothing here knows of zerotrace."""

from __future__ import annotations

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

config = GPT2Config(
    vocab_size=256, n_positions=32, n_embd=64, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
)
tokens = torch.randint(256, (512, 16), generator=torch.Generator().manual_seed(0))
arguments = TrainingArguments(
    output_dir=sys.argv[2],
    deepspeed=sys.argv[1],
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    max_steps=40,
    bf16=True,
    use_cpu=True,
    report_to=[],
    save_strategy="no",
    disable_tqdm=True,
)
rows = [{"input_ids": row, "labels": row} for row in tokens]
Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=rows).train()
