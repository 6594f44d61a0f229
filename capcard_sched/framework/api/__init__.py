"""The extension points: the table of hooks, the bases of plugins, and the views their hooks receive."""
