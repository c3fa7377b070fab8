"""What a founder says about clients' data, and the data contract that follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedrfq.data import CONTRACT, DATASETS, Contract, ImageForm
from fedrfq.data.archives import read_file
from fedrfq.data.image_form import AS_FOUND
from fedrfq.data.library import is_there, load
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment

# Of a file of class names: a name has at most 100 characters.
_MAX_NAMES_BYTES = 1 << 22
# Digits of the mean and the deviation that are published of the founder's example.
_DIGITS = 2


@dataclass(frozen=True)
class ContractChoice:
    """The founder's options: the classes, the form of the images, or an example to read them from.

    What is said outright counts more than what the example has.
    """

    classes: Sequence[str] = ()
    form: ImageForm = AS_FOUND
    like: str = ""

    @staticmethod
    def of(classes: str, like: str, **form: str | bool) -> ContractChoice:
        """Return the choice of options as a user writes them."""
        chosen = replace(ImageForm.of(**form), chosen="options")  # type: ignore[arg-type]
        return ContractChoice(parse_classes(classes), chosen, like)

    def contract(self, experiment: Experiment) -> Contract | None:
        """Return the contract of an experiment, or None if its data are known by name.

        The path of somebody's own data serves as an example.
        """
        data = experiment.data
        example = self.like
        if not example and not self.classes and data.name not in (*DATASETS, CONTRACT):
            example = data.name
        form = _over(self.form, data.form())
        if example:
            return self._like(example, form, experiment.has_noise)
        if self.classes:
            return Contract.of(self.classes, form)
        if data.name == CONTRACT or form != AS_FOUND:
            raise UserError(
                "the data contract: expected the names of the classes, found none; give --classes"
                " a,b,c and --shape 1x28x28, or --like FOLDER with an example of the data"
            )
        return None

    def _like(self, example: str, form: ImageForm, has_noise: bool) -> Contract:
        if not is_there(example):
            raise UserError(
                f"--like: expected the path of an example of clients' data, found nothing at"
                f" {example!r:.200}; check the path"
            )
        found = load(example, form)
        classes = self.classes or found.classes
        form = replace(form, shape=form.shape or found.shape)
        if has_noise:
            # Mean and deviation of samples would be published without any.
            return Contract.of(classes, form)
        mean = sum(found.mean) / len(found.mean)
        std = sum(found.std) / len(found.std)
        return Contract.of(
            classes,
            form,
            mean=round(mean, _DIGITS),
            std=max(round(std, _DIGITS), 10**-_DIGITS),
        )


def parse_classes(text: str) -> tuple[str, ...]:
    """Return class names that are separated by commas, or stand in a file, one on a line."""
    if "," in text or not text:
        return tuple(name.strip() for name in text.split(",") if name.strip())
    path = Path(text)
    if not path.is_file():
        raise UserError(
            f"--classes: expected names separated by commas, or a file with a name on each line,"
            f" found {text!r:.100}; write a,b,c"
        )
    try:
        lines = read_file(path, _MAX_NAMES_BYTES).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: expected UTF-8 text, found other bytes; save it so") from error
    return tuple(line.strip() for line in lines if line.strip())


def check_images(experiment: Experiment, contract: Contract) -> None:
    """Check that the experiment's models and public map take images of the contract's shape."""
    import torch

    shape = contract.form.shape
    assert shape is not None
    for cohort in experiment.models():
        # Weights that are trained already need not be here.
        if getattr(cohort.model, "weights", "none") == "none":
            cohort.model.start(shape, len(contract.classes), torch.Generator())
    if experiment.public.used and not experiment.public.slow:
        experiment.public.raw(torch.zeros((1, *shape), dtype=torch.uint8))


def _over(first: ImageForm, second: ImageForm) -> ImageForm:
    """Return the first form, with what it leaves open taken from the second."""
    return replace(
        first,
        shape=first.shape or second.shape,
        window=first.window or second.window,
        resize=first.resize or second.resize,
        recolour=first.recolour or second.recolour,
    )
