"""A trial class as the guides have them, with a switch for each thing that a class may do."""
import os
import signal
import sys

import deepspeed
import torch
from determined import pytorch
from determined.pytorch import DataLoader
from determined.pytorch.deepspeed import (DeepSpeedTrial, DeepSpeedTrialContext, ModelParallelUnit,
                                          overwrite_deepspeed_config)


class Lines(torch.utils.data.Dataset):
    """Points of a line; each sample also has its number."""

    def __init__(self, samples):
        self.x = torch.linspace(-1, 1, samples).unsqueeze(1)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], 3 * self.x[index] + 1, index


class Seen(pytorch.PyTorchCallback):
    """Counts the epochs, and keeps the number in checkpoints."""

    def __init__(self):
        self.epochs = 0

    def on_training_epoch_start(self, epoch_idx):
        self.epochs += 1

    def on_validation_end(self, metrics):
        print("validated:", sorted(metrics), "epochs:", self.epochs)

    def state_dict(self):
        return {"epochs": self.epochs}

    def load_state_dict(self, state_dict):
        self.epochs = state_dict["epochs"]


class LinearTrial(DeepSpeedTrial):
    def __init__(self, context: DeepSpeedTrialContext) -> None:
        self.context = context
        self.hparams = context.get_hparams()
        self.is_set = lambda name: self.hparams.get("test") == name
        assert torch.distributed.is_initialized()
        if self.is_set("manual") or self.is_set("too_few"):
            context.disable_auto_grad_accumulation()
        if self.is_set("own_loader"):
            context.disable_dataset_reproducibility_checks()
        self.engines = [self.make_engine() for _ in range(2 if self.is_set("two_engines") else 1)]
        self.engine = self.engines[0]
        self.reducer = context.wrap_reducer(lambda values: max(values, default=0), name="last")
        if self.is_set("model_parallel"):  # Both ranks train one replica; one has the data.
            first = context.distributed.rank == 0
            context.set_mpu(ModelParallelUnit(0, 1, first, first))

    def make_engine(self):
        config = overwrite_deepspeed_config(
            self.hparams["deepspeed_config"], self.hparams.get("overwrite_deepspeed_args", {}))
        model = torch.nn.Linear(1, 1)
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(),
                                          config=config)
        return self.context.wrap_model_engine(engine)

    def loader(self, samples, **arguments):
        if self.is_set("own_loader") or self.is_set("foreign_loader"):
            return torch.utils.data.DataLoader(
                Lines(samples), batch_size=self.context.train_micro_batch_size_per_gpu)
        return DataLoader(Lines(samples), batch_size=self.context.train_micro_batch_size_per_gpu,
                          **arguments)

    def build_training_data_loader(self):
        return self.loader(48, shuffle=True, num_workers=int(self.is_set("preempted")))

    def build_validation_data_loader(self):
        return self.loader(2 if self.is_set("two_engines") else 20)  # Each rank has both.

    def build_callbacks(self):
        return {"seen": Seen()}

    def loss(self, engine, batch):
        x, y, number = batch
        print("fed:", number.tolist(), "training" if engine.module.training else "evaluation")
        return torch.nn.functional.mse_loss(engine(x), y)

    def batch(self, iterator):
        if iterator is None:
            return [torch.zeros(2, 1), torch.ones(2, 1), torch.zeros(2)]
        return self.context.to_device(next(iterator))

    def train_batch(self, dataloader_iter, epoch_idx, batch_idx):
        steps = self.context.num_micro_batches_per_slot
        calls = {"manual": steps, "too_few": steps - 1}.get(self.hparams.get("test"), 1)
        for _ in range(calls):
            batch = self.batch(dataloader_iter)
            for engine in self.engines:
                loss = self.loss(engine, batch)
                engine.backward(loss)
                engine.step()
        if self.is_set("stops") and batch_idx == 2:
            self.context.set_stop_requested(True)
        if self.is_set("preempted") and batch_idx == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        self.reducer.update(batch_idx)
        return (loss, 0) if self.is_set("bad_metrics") else {"loss": loss, "all": torch.zeros(2)}

    def evaluate_batch(self, dataloader_iter, batch_idx):
        loss = self.loss(self.engine, self.batch(dataloader_iter))
        self.reducer.update(batch_idx)
        name = "other" if self.is_set("other_names") and batch_idx else "val_loss"
        return {name: loss}


class OwnGroupTrial(LinearTrial):
    def __init__(self, context):
        assert not torch.distributed.is_initialized()
        deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
        super().__init__(context)


class PipelineTrial(LinearTrial):
    """The engine of a pipeline gets its data from the driver, as in the guides."""

    def make_engine(self):
        model = deepspeed.PipelineModule([torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)],
                                         num_stages=2, loss_fn=torch.nn.MSELoss())
        engine, *_ = deepspeed.initialize(
            model=model, model_parameters=[*model.parameters()],
            config=self.hparams["overwrite_deepspeed_args"])
        return self.context.wrap_model_engine(engine)

    def loader(self, samples, **arguments):
        pairs = torch.utils.data.TensorDataset(*(torch.linspace(0, 1, samples).unsqueeze(1),) * 2)
        return DataLoader(pairs, batch_size=self.context.train_micro_batch_size_per_gpu)

    def train_batch(self, dataloader_iter, epoch_idx, batch_idx):
        assert self.context.use_pipeline_parallel
        return {"loss": self.engine.train_batch()}

    def evaluate_batch(self, dataloader_iter, batch_idx):
        return {"val_loss": self.engine.eval_batch()}


class NoEngineTrial(LinearTrial):
    def make_engine(self):
        return None


if __name__ == "__main__":
    sys.exit("run_class.py trains the classes")
