"""Small image files that several tests share."""

import io

import numpy as np
from PIL import Image

# Each form of file: Pillow's format, mode and further arguments.
FORMS = {
    "colour.jpg": ("JPEG", "RGB", {"quality": 95}),
    "grey.jpg": ("JPEG", "L", {}),
    "cmyk.jpg": ("JPEG", "CMYK", {}),
    "progressive.jpeg": ("JPEG", "RGB", {"progressive": True}),
    "colour.png": ("PNG", "RGB", {}),
    "grey.png": ("PNG", "L", {}),
    "palette.png": ("PNG", "P", {}),
    "alpha.png": ("PNG", "RGBA", {}),
    "colour.bmp": ("BMP", "RGB", {}),
    "palette.bmp": ("BMP", "P", {}),
    "grey.bmp": ("BMP", "L", {}),
    "still.gif": ("GIF", "P", {}),
    "colour.webp": ("WEBP", "RGB", {"lossless": True}),
    "colour.tiff": ("TIFF", "RGB", {}),
}


def picture(height=40, width=56, seed=0):
    """A smooth colour picture, uint8 [height, width, 3], different for each seed."""
    random = np.random.default_rng(seed)
    small = Image.fromarray(random.integers(0, 256, (5, 7, 3), dtype=np.uint8))
    return np.asarray(small.resize((width, height), Image.Resampling.BICUBIC))


def encode(pixels, form="colour.png"):
    """The bytes of a picture as a file of one of the FORMS."""
    kind, mode, options = FORMS[form]
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, kind, **options)
    return file.getvalue()


def write(path, *args, form=None, **kwargs):
    """Writes a picture; the form is that of the ending unless given."""
    ending = path.suffix
    form = form or next(name for name in FORMS if name.endswith(ending))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode(picture(*args, **kwargs), form))
    return path


def write_classes(folder, classes=("cat", "dog"), count=6, size=(16, 16), ending=".png"):
    """Writes class folders of pictures, no two alike; sizes vary if `size` is None."""
    for number, name in enumerate(classes):
        for i in range(count):
            seed = 1000 * number + i
            height, width = size or (24 + 8 * (i % 3), 30 + 6 * (i % 4))
            write(folder / name / f"{i}{ending}", height, width, seed=seed)
    return folder


def cut_short(path):
    """Takes the second half of a file away."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    return path
