"""A plain loop that trains a small mixture of experts of Hugging Face."""
import argparse
import os

import deepspeed
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--deepspeed_config")
args = parser.parse_args()
torch.manual_seed(0)
model = Qwen3MoeForCausalLM(Qwen3MoeConfig(
    vocab_size=128, hidden_size=64, intermediate_size=64, moe_intermediate_size=64,
    num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, head_dim=32, num_experts=6,
    num_experts_per_tok=2, max_position_embeddings=32))
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(),
                                  config=args.deepspeed_config)
generator = torch.Generator().manual_seed(1 + int(os.environ["RANK"]))
for _ in range(200):
    tokens = torch.randint(0, 128, (engine.train_micro_batch_size_per_gpu(), 32),
                           generator=generator)
    loss = engine(input_ids=tokens, labels=tokens).loss
    engine.backward(loss)
    engine.step()
