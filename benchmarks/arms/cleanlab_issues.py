"""cleanlab's suspects for the probabilities of an .npz file, as JSON: its version, and {order: indices}."""

import json
import sys

import cleanlab
import numpy as np
from cleanlab.filter import find_label_issues

ORDERS = ("self_confidence", "normalized_margin")

arrays = np.load(sys.argv[1])
found = {
    order: find_label_issues(arrays["labels_M"], arrays["probabilities_MC"], return_indices_ranked_by=order, n_jobs=1)
    for order in ORDERS
}
print(json.dumps({"version": cleanlab.__version__} | {order: each.tolist() for order, each in found.items()}))
