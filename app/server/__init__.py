"""The HTTP interface of `dicast serve`."""
