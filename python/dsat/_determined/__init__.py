"""The names of Determined's API that code after its guides uses (dsat/determined.py)."""
from dsat._trial import note_change
from dsat.determined import missing_names

from ._experiment import ClusterInfo, InvalidHP, TrialInfo, get_cluster_info

LOG_FORMAT = "%(levelname)s [%(process)d] %(name)s: %(message)s"

__all__ = ["LOG_FORMAT", "ClusterInfo", "InvalidHP", "TrialInfo", "core", "get_cluster_info",
           "integrations", "launch", "pytorch", "transformers"]
__getattr__ = missing_names(__name__)
note_change()  # Without dsat the script finds none of these names, so that `dsat train` trains it.
