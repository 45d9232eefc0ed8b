"""The helpers of dsat, where Determined had them."""
from dsat import dsat_reporting_context, get_ds_config_from_hparams, get_hf_args_with_overwrites
from dsat.determined import missing_names

__all__ = ["dsat_reporting_context", "get_ds_config_from_hparams", "get_hf_args_with_overwrites"]
__getattr__ = missing_names(__name__)
