"""One module per revision of the tables, each after the one that its `down_revision` names."""
