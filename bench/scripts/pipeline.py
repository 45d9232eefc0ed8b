"""Trains a network as a pipeline of two stages: pipeline.py --deepspeed_config ds_config.json"""
import argparse

import deepspeed
import torch
from deepspeed.pipe import LayerSpec, PipelineModule
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
args = deepspeed.add_config_arguments(parser).parse_args()
deepspeed.init_distributed()
model = PipelineModule([LayerSpec(nn.Linear, 512, 512) for _ in range(8)], num_stages=2,
                       loss_fn=nn.MSELoss())
data = torch.utils.data.TensorDataset(torch.randn(1 << 14, 512), torch.randn(1 << 14, 512))
engine, *_ = deepspeed.initialize(args=args, model=model, training_data=data,
                                  model_parameters=list(model.parameters()))
for _ in range(100):
    engine.train_batch()
