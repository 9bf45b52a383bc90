"""One lane: its menu, editor, panel, text and tree."""
