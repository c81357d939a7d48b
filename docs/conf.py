"""Sphinx configuration: MyST pages in the furo theme, nothing fetched from the network."""

import re
from pathlib import Path

project = "AxiomRL"
author = "The AxiomRL authors"
copyright = "The AxiomRL authors, MIT licence"  # noqa: A001 - Sphinx's name for it
_init = (Path(__file__).parents[1] / "src" / "rl_training" / "__init__.py").read_text(encoding="utf-8")
release = version = re.search(r'__version__ = "(.+?)"', _init)[1]  # type: ignore[index]

extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"AxiomRL {release}"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_copy_source = False
html_show_sphinx = False
