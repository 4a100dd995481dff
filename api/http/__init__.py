"""The HTTP service: one file for each subject of the API."""
