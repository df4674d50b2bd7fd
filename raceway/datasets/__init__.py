"""Datasets of recorded episodes, for learning without an environment.

    dataset = open_dataset("data/cartpole")      a folder, a JSONL file, a run with a dataset, or a Minari id
    dataset.rows(np.arange(256), next_obs=True)  a batch of rows, in the order of the steps

A dataset is data, never code: nothing in it is unpickled, run or imported.
"""

from raceway.datasets.dataset import Dataset, check_spaces
from raceway.datasets.folder import DatasetWriter, save_dataset
from raceway.datasets.opening import open_dataset

__all__ = ["Dataset", "DatasetWriter", "check_spaces", "open_dataset", "save_dataset"]
