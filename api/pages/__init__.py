"""The pages for people: read-only, rendered here, and whole without JavaScript."""
