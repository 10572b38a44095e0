"""Worker processes that compute the files of a build stage."""
