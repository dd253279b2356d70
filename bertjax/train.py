"""python -m bertjax.train: the documented entry to training, the same as `bertjax train`."""

import sys

from bertjax.__main__ import main

if __name__ == "__main__":
    sys.argv.insert(1, "train")
    sys.exit(main())
