"""Trains a trial class by the Trainer of Determined's guides."""
import determined as det
from determined import pytorch
from determined.pytorch import deepspeed as det_ds
from linear_trial import LinearTrial


def main():
    info = det.get_cluster_info()
    with det_ds.init(hparams={"of_script": 7}, exp_conf={"data": {"folder": "d"}}) as context:
        assert context.get_hparam("of_script") == 7
        assert context.get_data_config() == {"folder": "d"}
        trainer = det_ds.Trainer(LinearTrial(context), context)
        trainer.fit(max_length=pytorch.Epoch(1), validation_period=pytorch.Batch(4),
                    checkpoint_policy=info.trial.hparams["policy"],
                    latest_checkpoint=info.latest_checkpoint)


if __name__ == "__main__":
    main()
