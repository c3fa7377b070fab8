"""A dataset as a folder of PNG, JPEG or TIFF images: in class folders, or listed in labels.csv."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrfq.data import label_csv
from fedrfq.data.content import Content, checked
from fedrfq.data.image_decoding import pixels, values
from fedrfq.data.image_form import AS_FOUND, MAX_BYTES, MAX_PIXELS, ImageForm, Unfit, is_grey
from fedrfq.data.split import TEST_SHARE, Split, by_content
from fedrfq.data.survey import Survey
from fedrfq.errors import UserError

SUFFIXES = {".png", ".jpg", ".jpeg", ".tif", ".tiff"}
# Pictures that are not read. Other files, such as notes, are nobody's samples.
_OTHER_PICTURES = {".bmp", ".dcm", ".dicom", ".gif", ".heic", ".jp2", ".nii", ".npy", ".webp"}
# The class and the path of each image.
_Labelled = list[tuple[str, Path]]


def read(
    folder: Path,
    form: ImageForm = AS_FOUND,
    partial: bool = False,
    split: Split = by_content,
) -> Content:
    """Return the dataset in train/<class>/* and test/<class>/*, or in <class>/* alone.

    In the latter case `split` says which fifth is for testing. Where a folder of class folders
    is expected, there may also be images and a labels.csv. With `partial`, the folder is of a
    client that may lack classes.
    """
    parts = _parts(folder)
    try:
        if len(parts) == 2:
            content = _two_parts(*parts, form, partial)
        else:
            content = _one_part(folder, form, partial, split)
    except Unfit as error:
        raise survey(folder, form, partial).fault(str(folder)) from error
    return checked(content, str(folder), partial)


def survey(folder: Path, form: ImageForm, partial: bool = False) -> Survey:
    """Return what all pictures of a folder are like, before they are made alike."""
    parts = _parts(folder)
    classes = _class_names(parts[0], partial)
    paths = [path for part in parts for _, path in _labelled(part, classes)]
    found = ((str(path.relative_to(folder)), values(path, MAX_PIXELS, str(path))) for path in paths)
    return Survey.of(found, form)


def class_names(folder: Path, partial: bool = False) -> tuple[str, ...]:
    """Return the names of the classes that `read` would find; no picture is read for it."""
    return _class_names(_parts(folder)[0], partial)


def _parts(folder: Path) -> tuple[Path, ...]:
    """Return the folders for training and testing, or the folder itself if it has no such parts."""
    train = folder / "train"
    test = folder / "test"
    if train.is_dir() and test.is_dir():
        return train, test
    # A class may well be called train, but not the only one, with folders in it.
    found = _subfolders(folder)
    if found in ([train], [test]) and _subfolders(found[0]):
        raise UserError(
            f"{folder}: expected the folders train and test, found only one of them; add the other,"
            " or put the folders of the classes here"
        )
    return (folder,)


def _two_parts(train: Path, test: Path, form: ImageForm, partial: bool) -> Content:
    # A class without test images is fine, one without training images is not.
    classes = _class_names(train, partial)
    extra = sorted(set(_class_names(test, partial)) - set(classes))
    if extra:
        raise UserError(
            f"{test}: expected only classes that are in train, found {extra[0]!r}; "
            "add that class to train or remove it from test"
        )
    trained = _labelled(train, classes)
    tested = _labelled(test, classes)
    for part, found in ((train, trained), (test, tested)):
        _check_any(found, part)
    images, labels = _images([*trained, *tested], classes, form)
    cut = len(trained)
    return Content(images[:cut], labels[:cut], images[cut:], labels[cut:], classes)


def _one_part(folder: Path, form: ImageForm, partial: bool, split: Split) -> Content:
    classes = _class_names(folder, partial)
    found = _labelled(folder, classes)
    _check_any(found, folder)
    images, labels = _images(found, classes, form)
    if split is by_content:
        _check_pairs(labels, classes, folder)
    train, test = split(images, labels, TEST_SHARE, str(folder))
    return Content(images[train], labels[train], images[test], labels[test], classes)


def _check_pairs(labels: NDArray[np.int64], classes: tuple[str, ...], folder: Path) -> None:
    for label, name in enumerate(classes):
        if np.count_nonzero(labels == label) == 1:
            raise UserError(
                f"{folder}: expected at least 2 images of class {name!r} (one to train on, "
                "one to test), found 1; add some, or leave the class out"
            )


def _class_names(folder: Path, partial: bool) -> tuple[str, ...]:
    if (folder / label_csv.NAME).exists():
        names = {name for name, _ in label_csv.read(folder)}
    else:
        names = {path.name for path in _subfolders(folder)}
    least = 1 if partial else 2
    if len(names) < least:
        raise UserError(
            f"{folder}: expected a subfolder for each of {least} or more classes, "
            f"found {len(names)}; add a folder of images for each class, or a {label_csv.NAME}"
        )
    return tuple(sorted(names))


def _subfolders(folder: Path) -> list[Path]:
    # Hidden folders are some program's, such as .ipynb_checkpoints.
    found = (path for path in folder.iterdir() if not path.name.startswith("."))
    return [path for path in found if path.is_dir()]


def _check_any(found: _Labelled, folder: Path) -> None:
    if not found:
        raise UserError(
            f"{folder}: expected .png, .jpg or .tif files in its folders, found none; add some"
        )


def _images(
    labelled: _Labelled, classes: tuple[str, ...], form: ImageForm
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return all images as N×C×H×W, and their labels."""
    arrays: list[NDArray[np.uint8]] = []
    labels: list[int] = []
    for name, path in labelled:
        image = pixels(path, MAX_PIXELS, str(path), form)
        form = form.like(image)
        if form.first and len(image) == 1 and all(map(is_grey, arrays)):
            # Colour files that hold grey pictures are grey, even if they come first.
            form = form.in_grey()
            arrays = [array[:1] for array in arrays]
        arrays.append(form.fitted(image, str(path)))
        labels.append(classes.index(name))
        if len(arrays) * arrays[-1].size > MAX_BYTES:
            raise UserError(
                f"{path}: expected at most {MAX_BYTES} bytes of images in all, found more; "
                "use fewer or smaller images"
            )
    return np.stack(arrays), np.array(labels, np.int64)


def _labelled(folder: Path, classes: tuple[str, ...]) -> _Labelled:
    """Return the class and the path of each image, ordered by class and file name."""
    if (folder / label_csv.NAME).exists():
        return sorted(label_csv.read(folder))
    for path in sorted(folder.iterdir()):
        _refuse_loose(path)
    return [(name, path) for name in classes for path in _image_files(folder / name)]


def _image_files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    # Hidden files are some program's, such as those that macOS puts beside every file.
    found = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    for path in found:
        _refuse_overlooked(path)
    return [path for path in found if path.suffix.lower() in SUFFIXES]


def _refuse_loose(path: Path) -> None:
    """Refuse a picture beside the folders of the classes, which would not be read."""
    is_picture = path.suffix.lower() in SUFFIXES | _OTHER_PICTURES
    if is_picture and not path.name.startswith(".") and not path.is_dir():
        raise UserError(
            f"{path}: expected pictures in the folders of their classes, found one beside them;"
            " move it into one of them, or elsewhere"
        )


def _refuse_overlooked(path: Path) -> None:
    """Refuse what may hold samples and would not be read: nothing is left out silently."""
    if path.is_dir():
        raise UserError(
            f"{path}: expected pictures in the folder of a class, found a folder; "
            f"move its pictures up, or list them in a {label_csv.NAME} instead"
        )
    if path.suffix.lower() in _OTHER_PICTURES:
        raise UserError(
            f"{path}: expected .png, .jpg or .tif files, found a {path.suffix.lower()} file; "
            "convert it, or move it elsewhere"
        )
