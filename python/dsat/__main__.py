"""`python -m dsat` is the command `dsat`."""
from dsat._program import main

main()
