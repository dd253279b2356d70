"""Teachers: wrappers that train any objective with a teacher (`Distilled`, `Replacing`), and their losses."""
