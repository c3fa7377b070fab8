"""A federation as a scikit-learn classifier, for the smallest case: rows, labels, whose they are.

Every group is a client that never shows its rows to the others. Where no groups are given, the rows
are dealt to `clients` clients at random.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted, check_X_y

from fedrfq.api.run import run
from fedrfq.data import Dataset
from fedrfq.data.client_data import normalised
from fedrfq.data.given_arrays import images_of
from fedrfq.files import toml
from fedrfq.learning.draws import deal
from fedrfq.runs.inference import ClientModel

Floats = NDArray[np.float64]


class FedRFQClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Trains one model for each group of samples, which exchange prototypes of their classes.

    `model` is the name of a model or an `nn.Module` (see `fedrfq.run`); `settings` are further keys
    of an experiment, such as {"train": {"lr": 0.1}}. With `out`, the run directory is kept there
    and is `run_.path`.
    """

    def __init__(
        self,
        method: str = "fedrfq",
        model: Any = "mlp",
        rounds: int = 20,
        clients: int = 5,
        seed: int = 0,
        device: str = "cpu",
        settings: Mapping[str, Any] | None = None,
        out: Path | str | None = None,
    ) -> None:
        self.method = method
        self.model = model
        self.rounds = rounds
        self.clients = clients
        self.seed = seed
        self.device = device
        self.settings = settings
        self.out = out

    def fit(self, X: Any, y: Any, groups: Any = None) -> FedRFQClassifier:
        """Train on rows N×F or images N×H×W, with a group for each if they are given."""
        X, y = check_X_y(X, y, allow_nd=True, dtype="numeric")
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError("Classifier can't train when only one class is present.")
        self.n_features_in_ = X.shape[1]
        X = np.asarray(X, np.float64)
        names = [str(number) for number in range(len(self.classes_))]
        # Nothing is held back: `score` is for samples that the caller has kept.
        data = Dataset.from_arrays(
            X, labels, (X, labels), names, groups=groups, test_groups=groups, name="rows"
        )
        if self.out is not None:
            self._train(data, groups, Path(self.out))
            return self
        with TemporaryDirectory() as folder:
            self._train(data, groups, Path(folder))
        return self

    def _train(self, data: Dataset, groups: Any, out: Path) -> None:
        module = None if isinstance(self.model, str) else self.model
        started = run(self._table(data), self.device, out, data=data, model=module)
        started.finish()
        self.mean_ = data.mean
        self.std_ = data.std
        clients = started.experiment.clients
        self.models_ = [ClientModel.load(started.directory, k).module for k in range(clients)]
        self.groups_: list[Any] | None = None
        if groups is not None:
            dealt = deal(started.experiment, data)
            self.groups_ = [np.asarray(groups)[own[0]] for own in dealt.train]
        if self.out is not None:
            self.run_ = started

    def _table(self, data: Dataset) -> toml.Table:
        """Return the experiment: clients are the groups or, without any, equal random shares."""
        rows = len(data.train_y)
        clients = min(self.clients, rows)
        partition: toml.Table = {"name": "iid", "samples": rows // clients}
        partition["test_samples"] = partition["samples"]
        if data.train_groups is not None:
            clients = len(np.unique(data.train_groups))
            partition = {"name": "groups"}
        table: toml.Table = {
            "rounds": self.rounds,
            "clients": clients,
            "seed": self.seed,
            "checkpoint": self.rounds,
            "partition": partition,
            "method": {"name": self.method},
            # Rows are few and their values are of order 1.
            "train": {"lr": 0.05, "batch_size": 8},
        }
        if isinstance(self.model, str):
            table["model"] = {"name": self.model}
        return toml.merge(table, self.settings or {})

    def predict_proba(self, X: Any, groups: Any = None) -> Floats:
        """Return the probability of each class: by a row's own group, or the mean of all clients.

        A row of a group that no client is gets the mean, too.
        """
        check_is_fitted(self, "models_")
        X = check_array(X, allow_nd=True, dtype="numeric")
        if X.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {X.shape[1]} features, but FedRFQClassifier is expecting "
                f"{self.n_features_in_} features as input"
            )
        (pixels,) = images_of([np.asarray(X, np.float64)], "rows", as_numbers=True)
        x = normalised(torch.from_numpy(pixels), self.mean_, self.std_)
        by_client_KNJ = np.stack([_probabilities(model, x) for model in self.models_])
        mean_NJ: Floats = by_client_KNJ.mean(0)
        if groups is None or self.groups_ is None:
            return mean_NJ
        for client, group in enumerate(self.groups_):
            own = np.asarray(groups) == group
            mean_NJ[own] = by_client_KNJ[client, own]
        return mean_NJ

    def predict(self, X: Any, groups: Any = None) -> NDArray[Any]:
        """Return the most probable class of each row."""
        most_probable = self.predict_proba(X, groups).argmax(1)
        found: NDArray[Any] = np.asarray(self.classes_)[most_probable]
        return found


@torch.no_grad()
def _probabilities(model: torch.nn.Module, x: torch.Tensor) -> Floats:
    """Return what a client's model makes of normalised rows or images."""
    logits, _ = model(x)
    return np.asarray(logits.softmax(-1).double())
