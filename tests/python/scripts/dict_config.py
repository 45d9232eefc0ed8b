"""A plain loop whose config is a dict, with a data loader of the dict's micro-batch size.

With `early`, the loader's iterator exists before the engine, which dsat cannot change any more.
With `evaluates`, a batch of 100 samples is evaluated before each step. With `partitioned`, the
script expects stage 3. With `short`, each epoch has 15 samples, and the script ends with code 3.
With `saves`, it saves a checkpoint after each step. With `reference`, another engine only
computes; with `critic`, another one trains, too. With `local_rank`, the default of this argument is
that of the first rank. With `few`, the data is enough for nine steps of twelve samples; with `fails`, the script
then fails.
"""
import argparse
import itertools
import sys

import deepspeed
import torch
from small_model import Model, Tokens

config = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 0},
          "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}}
samples = 15 if "short" in sys.argv else 9 * 12 if "few" in sys.argv else 4096
loader = torch.utils.data.DataLoader(Tokens(samples=samples), batch_size=4)
batches = iter(loader) if "early" in sys.argv else None
with deepspeed.zero.Init(config_dict_or_path=config, enabled="partitioned" in sys.argv):
    model = Model()
args = argparse.Namespace(local_rank=0) if "local_rank" in sys.argv else None
engine, *_ = deepspeed.initialize(args, model, model_parameters=model.parameters(), config=config)
if "reference" in sys.argv:
    reference, *_ = deepspeed.initialize(
        model=Model(), config={"train_micro_batch_size_per_gpu": 8})
    print("reference", reference.train_micro_batch_size_per_gpu(), reference.optimizer, flush=True)
critic = None
if "critic" in sys.argv:
    other = Model()
    critic, *_ = deepspeed.initialize(
        model=other, model_parameters=other.parameters(),
        config={**config, "train_micro_batch_size_per_gpu": 1})
    print("critic", critic.train_micro_batch_size_per_gpu(), flush=True)
epochs = 100 if "short" in sys.argv else 1
try:
    for ids in batches or itertools.chain.from_iterable(itertools.repeat(loader, epochs)):
        if "evaluates" in sys.argv:
            engine.eval()
            engine(torch.zeros(100, 8, dtype=torch.int64))
            engine.train()
        loss = engine(ids)["loss"]
        engine.backward(loss)
        engine.step()
        if critic is not None:
            critic.backward(critic(ids)["loss"])
            critic.step()
        if "saves" in sys.argv:
            engine.save_checkpoint("checkpoints")
finally:
    if "short" in sys.argv:
        sys.exit(3)
if "fails" in sys.argv:
    raise RuntimeError("out of memory")
