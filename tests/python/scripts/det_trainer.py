"""Hugging Face's trainer with the callback of the guides."""
import sys

import determined as det
from determined.integrations.huggingface import DetCallback
from determined.pytorch import dsat
from small_model import Model, Tokens
from transformers import HfArgumentParser, Trainer, TrainingArguments

hparams = det.get_cluster_info().trial.hparams
args = sys.argv[1:]
for name, value in hparams["training_arguments"].items():
    args += [f"--{name}", str(value)]
args = dsat.get_hf_args_with_overwrites(args, hparams)
(training_args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(
    args, look_for_args_file=False)
with det.core.init(distributed=det.core.DistributedContext.from_deepspeed()) as core_context:
    callback = DetCallback(core_context, training_args, filter_metrics=["loss"],
                           user_data={"from": "nothing"})
    trainer = Trainer(model=Model(), args=training_args, train_dataset=Tokens(named=True),
                      eval_dataset=Tokens(named=True, samples=16))
    trainer.add_callback(callback)
    with dsat.dsat_reporting_context(core_context, op=callback.current_op):
        trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
    print("trained", trainer.state.global_step)
