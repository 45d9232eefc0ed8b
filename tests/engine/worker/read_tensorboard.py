"""Prints the scalars of a folder of event files, as TensorBoard shows them: {tag: [[step, value]]}."""
import json
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

events = EventAccumulator(sys.argv[1])
events.Reload()
print(json.dumps({tag: [[event.step, event.value] for event in events.Scalars(tag)]
                  for tag in events.Tags()["scalars"]}))
