"""A plain loop with accelerate, whose plugin is made from arguments."""
import torch
from accelerate import Accelerator
from accelerate.utils import DeepSpeedPlugin
from dsat.accelerate import DsatTracker
from small_model import Model, Tokens

accelerator = Accelerator(log_with=DsatTracker(), deepspeed_plugin=DeepSpeedPlugin(
    zero_stage=1, gradient_accumulation_steps=1))
accelerator.init_trackers("test")
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = torch.utils.data.DataLoader(Tokens(), batch_size=4, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for ids in loader:
    with accelerator.accumulate(model):
        loss = model(ids)["loss"]
        accelerator.log({"my_loss": loss, "text": "is left out"})
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
