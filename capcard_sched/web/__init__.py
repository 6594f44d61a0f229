"""The web page: views of one cluster as data, rendered as HTML or JSON, and their server."""
