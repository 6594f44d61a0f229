"""Makes the pictures of docs/web: `make pictures`."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from tests.web.browser import chromium, window
from tests.web.served import ARGUMENTS, serving

FOLDER: Final = Path("docs/web")


class Picture(NamedTuple):
    """One page of an example."""

    file: str
    path: str
    theme: str = "light"


PICTURES: Final[dict[str, tuple[Picture, ...]]] = {
    "tidal": (
        Picture("tidal.png", "/?at=11h30m"),
        Picture("tidal-dark.png", "/?at=11h30m", "dark"),
    ),
    "demo": (Picture("demo-job.png", "/jobs/default/chat"),),
    "vgpu": (Picture("vgpu-nodes.png", "/nodes"),),
}


def main() -> None:
    """Write every picture."""
    FOLDER.mkdir(exist_ok=True)
    with chromium() as browser:
        for name, pictures in PICTURES.items():
            with serving(*ARGUMENTS[name]) as served:
                for picture in pictures:
                    with window(browser, served.url, width=1280, theme=picture.theme) as watched:
                        watched.page.set_viewport_size({"width": 1280, "height": 480})
                        watched.open(picture.path)
                        watched.page.screenshot(path=FOLDER / picture.file, full_page=True)


if __name__ == "__main__":
    main()
