"""A loop whose optimizer exists before the process group, as many scripts have it."""
import deepspeed
import torch
from small_model import Model, Tokens

model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config={})
for ids in torch.utils.data.DataLoader(Tokens(), engine.train_micro_batch_size_per_gpu()):
    engine.backward(engine(ids)["loss"])
    engine.step()
