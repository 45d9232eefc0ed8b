"""Trains the model of a Hugging Face config.json on random tokens, for a dry run.

usage: python3 -m dsat._of_config CONFIG.json SEQ_LEN DS_CONFIG.json

The class is the first of the config's `architectures`, or else a causal language model. A SEQ_LEN
of 0 is the longest one of the model. The dry run ends the process after two steps.
"""
import sys

import deepspeed
import torch
import transformers

config = transformers.AutoConfig.from_pretrained(sys.argv[1])
name = (config.architectures or [""])[0]
model = (getattr(transformers, name)(config) if hasattr(transformers, name)
         else transformers.AutoModelForCausalLM.from_config(config))
longest = getattr(config.get_text_config(), "max_position_embeddings", 0)
if not longest:
    raise ValueError(f"{name or config.model_type} reads no text; expected a language model, or a "
                     "script: dsat estimate -- COMMAND")
engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(),
                                       config=sys.argv[3])
while True:
    ids = torch.zeros(engine.train_micro_batch_size_per_gpu(), int(sys.argv[2]) or longest,
                      dtype=torch.long, device=engine.device)
    engine.backward(engine(input_ids=ids, labels=ids).loss)
    engine.step()
