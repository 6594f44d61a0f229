"""ClusterState: columns, equivalence classes and `apply(delta)`."""
