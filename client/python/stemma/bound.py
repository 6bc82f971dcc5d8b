"""`python -m stemma.bound FILE`: see stemma.bound(), which this module's name stands for."""

import sys

from ._bound import bound, main

if __name__ == "__main__":
    sys.exit(main())

sys.modules[__name__] = bound  # `import stemma.bound` must not hide the function
