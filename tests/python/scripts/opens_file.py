"""A plain loop that reads its config from a fixed file and builds a slow loader from it."""
import json
import pathlib
import time

import deepspeed
import torch
from small_model import Model, Tokens


class SlowTokens(Tokens):
    def __getitem__(self, index):
        time.sleep(0.05)
        return super().__getitem__(index)


config = json.loads(pathlib.Path("my_config.json").read_text())
model = Model()
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(),
                                  config_params=config)
for ids in torch.utils.data.DataLoader(SlowTokens(), config["train_micro_batch_size_per_gpu"]):
    loss = engine(ids)["loss"]
    engine.backward(loss)
    engine.step()
