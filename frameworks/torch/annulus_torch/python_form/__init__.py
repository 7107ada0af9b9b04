"""The back end in Python, for machines without a compiler: backend <- job <- work, communicator, elements <- library. It makes the same calls of
Annulus as the C++ in frameworks/torch, file by file, so ranks of both forms may share a group."""
