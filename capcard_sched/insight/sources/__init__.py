"""Objects behind a core: as Kubernetes writes them, read live where a diagnosis needs them, and checks of manifests."""
