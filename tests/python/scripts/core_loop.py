"""A training loop with the Core API, as the guides have it."""
import logging
import sys

import deepspeed
import determined as det
import torch
from determined.pytorch import dsat


class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((4,), index / 64), torch.ones(1)


def main(core_context, hparams, latest_checkpoint):
    is_chief = core_context.distributed.rank == 0
    deepspeed.init_distributed()
    model = torch.nn.Linear(4, 1)
    engine, _, loader, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), training_data=Points(),
        config=dsat.get_ds_config_from_hparams(hparams))
    steps = 0
    if latest_checkpoint is not None:
        with core_context.checkpoint.restore_path(storage_id=latest_checkpoint) as path:
            engine.load_checkpoint(path)
        steps = core_context.checkpoint.get_metadata(latest_checkpoint)["steps_completed"]
        print("continues after", steps)
    for op in core_context.searcher.operations():
        while steps < op.length:
            for x, y in loader:
                with dsat.dsat_reporting_context(core_context, op):
                    loss = torch.nn.functional.mse_loss(engine(x), y)
                    engine.backward(loss)
                    engine.step()
                if not engine.is_gradient_accumulation_boundary():
                    continue
                steps += 1
                losses = core_context.distributed.gather(loss.item())
                if is_chief:
                    core_context.train.report_training_metrics(
                        steps_completed=steps, metrics={"loss": sum(losses) / len(losses)})
                if steps % hparams["checkpoint_rate"] == 0:
                    metadata = {"steps_completed": steps}
                    with core_context.checkpoint.store_path(metadata, shard=True) as (path, _):
                        engine.save_checkpoint(path)
                    if core_context.preempt.should_preempt() or "stop" in sys.argv:
                        return
                if steps == op.length:
                    break
        if is_chief:
            op.report_completed(sum(losses) / len(losses))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format=det.LOG_FORMAT)
    info = det.get_cluster_info()
    distributed = det.core.DistributedContext.from_deepspeed()
    with det.core.init(distributed=distributed) as context:
        main(context, info.trial.hparams, info.latest_checkpoint)
