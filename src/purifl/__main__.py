"""``python -m purifl`` is ``purifl``."""

from purifl.cli import main

main()
