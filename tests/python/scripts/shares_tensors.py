"""A plain loop whose ranks share the tensors of a model of Hugging Face, and so the samples."""
import deepspeed
import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
    num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=16))
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config={
    "train_micro_batch_size_per_gpu": 6, "tensor_parallel": {"autotp_size": 2}})
generator = torch.Generator().manual_seed(1)
for _ in range(40):
    tokens = torch.randint(0, 64, (engine.train_micro_batch_size_per_gpu(), 16),
                           generator=generator)
    loss = engine(input_ids=tokens, labels=tokens).loss
    engine.backward(loss)
    engine.step()
