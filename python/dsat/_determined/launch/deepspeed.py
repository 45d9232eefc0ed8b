"""python3 -m determined.launch.deepspeed [--trial MODULE:CLASS] [COMMAND...], in each rank."""
from dsat.determined import main

__all__ = ["main"]
if __name__ == "__main__":
    main()
