"""Figures as files."""

from __future__ import annotations

from io import BytesIO

import matplotlib as mpl
from matplotlib.figure import Figure


def drawn(figure: Figure, form: str) -> bytes:
    """The figure as a file, the same bytes every time."""
    out = BytesIO()
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": None}[form]
    with mpl.rc_context({"svg.hashsalt": "purifl", "svg.fonttype": "none", "pdf.fonttype": 42}):
        figure.savefig(out, format=form, dpi=150, metadata=undated)
    return out.getvalue()
