"""A tracker for accelerate: Accelerator(log_with=DsatTracker()) keeps what the script logs."""
from __future__ import annotations

from typing import Any, Dict, Optional

from accelerate.tracking import GeneralTracker

from dsat._report import log


class DsatTracker(GeneralTracker):  # type: ignore[misc]
    """Keeps the last value of every number given to Accelerator.log() with the trial of dsat."""

    name = "dsat"
    requires_logging_directory = False
    main_process_only = False

    @property
    def tracker(self) -> None:
        """There is no object behind this tracker."""

    def store_init_configuration(self, values: Dict[str, Any]) -> None:
        """dsat knows the trial's configuration."""

    def log(self, values: Dict[str, Any], step: Optional[int] = None, **kwargs: Any) -> None:
        log(values)
